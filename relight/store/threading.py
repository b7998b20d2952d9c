"""One rollout store for all threads of a process: calls from other event loops run on the loop that owns it.

A connection pool and the group commits belong to one loop, which has to run while other threads call. Cancelling a call
cancels it on the owner's loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from relight.store.base import LightningStore
from relight.types.store import LightningStoreCapabilities


class LightningStoreThreaded:
    """Every method of a store, for callers in any thread; it counts as a `LightningStore`."""

    def __init__(self, store: LightningStore, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Args:
        store: one that belongs to a loop, or one that any thread may call already.
        loop: the owner of a store that belongs to one; by default the loop that runs now.
        """
        self.store = store
        self._loop = None if store.capabilities.get("thread_safe") else loop or asyncio.get_running_loop()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The store's capabilities, with `thread_safe`."""
        return {**self.store.capabilities, "thread_safe": True}

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self.store, name)
        owner = self._loop
        if owner is None or not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            if asyncio.get_running_loop() is owner:
                return await method(*args, **options)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(*args, **options), owner))

        return call


LightningStore.register(LightningStoreThreaded)
