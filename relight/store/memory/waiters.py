"""Waits in one event loop for the end of rollouts, which may happen in any other thread."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress


class Waiters:
    """The waits for rollouts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: defaultdict[str, set[_Waiter]] = defaultdict(set)

    async def wait(self, ids: Sequence[str], is_open: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `is_open` is false or the time is over. It is called again after each end of one of `ids`."""
        waiter = _Waiter()
        self._enter(ids, waiter)
        try:
            async with asyncio.timeout(timeout):
                while is_open():  # called after registering, so that no end is missed
                    await waiter.event.wait()
                    waiter.event.clear()
        except TimeoutError:
            return
        finally:
            self._leave(ids, waiter)

    def wake(self, rollout_id: str) -> None:
        """Wake the waits for a rollout that has ended."""
        with self._lock:
            waiters = list(self._events.get(rollout_id, ()))
        for waiter in waiters:
            waiter.wake()

    def _enter(self, ids: Sequence[str], waiter: _Waiter) -> None:
        with self._lock:
            for rollout_id in ids:
                self._events[rollout_id].add(waiter)

    def _leave(self, ids: Sequence[str], waiter: _Waiter) -> None:
        with self._lock:
            for rollout_id in set(ids):
                self._events[rollout_id].discard(waiter)
                if not self._events[rollout_id]:
                    del self._events[rollout_id]


class _Waiter:
    """An event of a loop that any thread may set."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def wake(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self.event.set)
