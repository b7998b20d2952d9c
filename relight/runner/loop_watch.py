"""Finds the call that blocks the event loop of a shared process.

A task that blocks stops all other calls of the process. The runner gets the blocked time and counts it towards the
deadlines of none of the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
import time
from collections.abc import Coroutine, Generator
from typing import Any, Final

from relight.runner import agent_process
from relight.runner import process_messages as messages

CHECK_SECONDS: Final = 0.5
"""How often the loop is checked, and how long it may take to respond."""

current_call: contextvars.ContextVar[int | None] = contextvars.ContextVar("relight_call", default=None)


class CallTask(asyncio.Task[Any]):
    """A task that knows the call it belongs to, even if an agent created it."""

    call: int | None = None


Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]


def make_task(loop: asyncio.AbstractEventLoop, work: Work, **options: Any) -> CallTask:
    """A task factory for `loop.set_task_factory`."""
    task = CallTask(work, loop=loop, **options)
    context: contextvars.Context | None = options.get("context")
    task.call = current_call.get() if context is None else context.get(current_call)
    return task


class LoopWatch:
    """A thread beside a loop, as long as the process lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
        self._loop = loop
        self._channel = channel

    def start(self) -> None:
        """Watch from now on."""
        self._loop.set_task_factory(make_task)
        threading.Thread(target=self._watch, daemon=True, name="relight-loop-watch").start()

    def _watch(self) -> None:
        while True:
            time.sleep(CHECK_SECONDS)
            turned, reported_at = threading.Event(), time.monotonic()
            self._loop.call_soon_threadsafe(turned.set)
            while not turned.wait(CHECK_SECONDS):
                now = time.monotonic()
                self._report(now - reported_at)
                reported_at = now

    def _report(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        if isinstance(task, CallTask) and task.call is not None:
            agent_process.Reporter(self._channel, task.call).send(messages.Blocked(seconds))
