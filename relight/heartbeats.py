"""Heartbeats of an activity: they tell Temporal that the work goes on, and bring back that it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from temporalio import activity


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


async def _heartbeat(every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        activity.heartbeat()
