"""Run a coroutine as a process: event loop, signals, exit code.

A first SIGTERM or SIGINT cancels it, so that it can drain; a second one ends the process at once. One that can't drain
in time ends by itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OBJECTS_A_COLLECTION = 20_000
"""Python's own 700 makes a service that keeps thousands of workflows or requests look at them all again and again."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command; Ctrl-C cancels it and becomes KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def run_service(main: Coroutine[Any, Any, None], most_seconds: float | None = None) -> None:
    """Run a service until it ends or is told to; told to is a success, and takes `most_seconds` at most."""
    gc.freeze()  # what is loaded by now stays
    gc.set_threshold(OBJECTS_A_COLLECTION)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_until_told(main, most_seconds))


async def _until_told(main: Coroutine[Any, Any, None], most_seconds: float | None) -> None:
    task = asyncio.ensure_future(main)
    ours: dict[int, Any] = {}
    told = False

    def stop(number: int) -> None:
        nonlocal told
        if signal.getsignal(number) is not ours[number]:
            return  # an HTTP server has taken the signal over, and drains by itself
        if told:
            os._exit(128 + number)
        told = True
        task.cancel()
        if most_seconds is not None:
            from relight.draining import end_by

            end_by(most_seconds)

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
        ours[number] = signal.getsignal(number)
    try:
        await task
    except asyncio.CancelledError:
        if not told:
            raise
