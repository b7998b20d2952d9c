"""One rollout store for all threads of a process: calls from other event loops run on the loop that owns it.

A connection pool and the group commits belong to one loop, which has to run while other threads call. Cancelling a call
cancels it on the owner's loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast

from relight.store.base import LightningStore


class AnyThread:
    """Runs every method of a store on the loop that owns it."""

    def __init__(self, store: LightningStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    @property
    def capabilities(self) -> dict[str, bool]:
        """The store's capabilities, with `thread_safe`."""
        return {**self._store.capabilities, "thread_safe": True}

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            if asyncio.get_running_loop() is self._loop:
                return await method(*args, **options)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(*args, **options), self._loop))

        return call


def any_thread(store: LightningStore) -> LightningStore:
    """The store for callers in any thread; the loop that runs now owns it."""
    return cast("LightningStore", AnyThread(store, asyncio.get_running_loop()))
