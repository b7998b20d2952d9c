"""Heartbeats of activities: they show Temporal that the work continues; their answers say whether it was cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity

from relight.retrying import Every, in_background


@asynccontextmanager
async def heartbeating(every_seconds: float) -> AsyncGenerator[None]:
    """Heartbeat the current activity until the end of the block. The first one comes after an interval, since the start
    counts as one.
    """
    async with in_background(_heartbeat(every_seconds)):
        yield


async def _heartbeat(every_seconds: float) -> None:
    async for _ in Every(every_seconds, at_once=False):
        activity.heartbeat()
