"""Runs a coroutine as a process: event loop, signals, exit code.

The first SIGTERM or SIGINT cancels it, so that it can drain; the second ends the process at once. A process that does
not drain in time ends by itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OBJECTS_A_COLLECTION = 20_000
"""With Python's default of 700, a service with thousands of workflows or requests collects garbage far too often."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command; Ctrl-C cancels it and becomes KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def run_service(main: Coroutine[Any, Any, None], most_seconds: float | None = None) -> None:
    """Run a service until it ends or is signalled to stop, which is a success and takes `most_seconds` at most."""
    gc.freeze()  # what is loaded by now is never garbage
    gc.set_threshold(OBJECTS_A_COLLECTION)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_until_signalled(main, most_seconds))


async def _run_until_signalled(main: Coroutine[Any, Any, None], most_seconds: float | None) -> None:
    task = asyncio.ensure_future(main)
    ours: dict[int, Any] = {}
    signalled = False

    def stop(number: int) -> None:
        nonlocal signalled
        if signal.getsignal(number) is not ours[number]:
            return  # an HTTP server has replaced the handler, and drains by itself
        if signalled:
            os._exit(128 + number)
        signalled = True
        task.cancel()
        if most_seconds is not None:
            from relight.temporal.draining import end_by

            end_by(most_seconds)

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
        ours[number] = signal.getsignal(number)
    try:
        await task
    except asyncio.CancelledError:
        if not signalled:
            raise
