"""Heartbeats of activities: they show Temporal that the work continues; their answers say whether it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


@asynccontextmanager
async def heartbeating(every_seconds: float) -> AsyncGenerator[None]:
    """Heartbeat the current activity until the end of the block. The first one comes after an interval, since the start
    counts as one.
    """
    task = asyncio.create_task(_heartbeat(every_seconds))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Heartbeats(Interceptor):
    """Heartbeats every activity of a worker, so that the death of its process is detected soon."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the execution of activities."""
        return _Heartbeating(next, self._every_seconds)


class _Heartbeating(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, every_seconds: float) -> None:
        super().__init__(next)
        self._every_seconds = every_seconds

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        async with heartbeating(self._every_seconds):
            return await super().execute_activity(input)


async def _heartbeat(every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        activity.heartbeat()
