"""How a process ends on SIGTERM or SIGINT, the first one and the second one.

A worker takes nothing new, lets what is under way end within `drain_seconds`, and hands back what is still running:
Temporal gives that to the next worker at once, and no try and no death is counted. A process that can't even do that
(the platform is away, something hangs) ends by itself a little later; then Temporal finds its heartbeats missing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

HANDED_BACK = "HandedBack"
SOON = timedelta(milliseconds=10)
"""Zero would mean the retry policy's own pause."""
HAND_BACK_SECONDS = 8.0
"""How long a process has, after its drain, to hand back what is left and to close."""
TOO_LATE = 124
"""Exit code of a process that could not end in time; that of timeout(1)."""


class RetryElsewhere(Interceptor):
    """An activity that is cut off because its process ends is tried elsewhere at once."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap what runs activities."""
        return _HandingBack(next)


class _HandingBack(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError as error:
            if not is_ending():
                raise
            raise ApplicationError(
                "handed back: the process that ran it is draining",
                type=HANDED_BACK,
                next_retry_delay=SOON,
                category=ApplicationErrorCategory.BENIGN,
            ) from error


def is_ending() -> bool:
    """Whether the activity at hand was cancelled because its own process ends, and for no other reason."""
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
    """End this process when so much time has passed, whatever it does."""
    return asyncio.get_running_loop().call_later(seconds, os._exit, TOO_LATE)
