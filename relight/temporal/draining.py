"""Draining: how a process ends on the first and the second SIGTERM or SIGINT.

A worker accepts no new work, lets activities under way end within `drain_seconds`, and hands back the rest: Temporal
gives it to the next worker at once, and no try or death is counted. A process that can't do that (the platform does not
answer, something hangs) exits a little later; then Temporal detects its missing heartbeats.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from temporalio import activity
from temporalio.worker import Worker

from relight.temporal.retry_later import retry_later

HANDED_BACK = "HandedBack"
SOON_SECONDS = 0.01
"""Not zero, which would mean the retry policy's own pause."""
HAND_BACK_SECONDS = 8.0
"""How long a process may take, after its drain, to hand back the rest and to close."""
TOO_LATE = 124
"""Exit code of a process that could not end in time; that of timeout(1)."""


@contextmanager
def handed_back_if_ending() -> Generator[None]:
    """Have an activity that is cancelled because its process ends retried elsewhere at once."""
    try:
        yield
    except asyncio.CancelledError as error:
        if not is_ending():
            raise
        raise retry_later("handed back: the process that ran it is draining", SOON_SECONDS, HANDED_BACK) from error


def is_ending() -> bool:
    """Whether the current activity was cancelled only because its process ends."""
    details = activity.cancellation_details()
    return details is not None and details.worker_shutdown and not details.cancel_requested


@asynccontextmanager
async def keep_working(workers: Sequence[Worker]) -> AsyncGenerator[None]:
    """Have workers poll until the block ends; then all of them drain side by side."""
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        try:
            yield
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def end_by(seconds: float) -> asyncio.TimerHandle:
    """End this process after this time, whatever it does."""
    return asyncio.get_running_loop().call_later(seconds, os._exit, TOO_LATE)
