"""Heartbeats of an activity: they show Temporal that the work goes on, and their answers say that it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


@asynccontextmanager
async def heartbeating(every_seconds: float) -> AsyncGenerator[None]:
    """Heartbeat the activity at hand until the end of the block.

    The first comes after an interval: the start itself counts as one, and each is a write of Temporal's.
    """
    task = asyncio.create_task(_heartbeat(every_seconds))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Heartbeats(Interceptor):
    """Has every activity of a worker heartbeat, so that the death of its process is found soon."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap what runs activities."""
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
