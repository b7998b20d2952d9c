"""Heartbeats of activities: they show Temporal that the work continues; their answers say whether it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

from relight.retrying import Every


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


async def _heartbeat(every_seconds: float) -> None:
    async for _ in Every(every_seconds, at_once=False):
        activity.heartbeat()
