"""A lock by which one attempt can run alone in a runner: the last try of a rollout whose process died repeatedly.

Attempts share a runner, and an attempt that kills it also kills the others. Before a rollout is given up for that (rule
4), one attempt at it runs alone, so that no rollout is given up because of another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class SharedExclusiveLock:
    """Held by many at once, or by one exclusively. An exclusive request takes precedence over later ones."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._among_others = 0
        self._alone = False
        self._wish_to_be_alone = 0

    @asynccontextmanager
    async def enter(self, alone: bool) -> AsyncGenerator[None]:
        """Hold the lock in the block, once it is available."""
        await (self._begin_alone() if alone else self._begin_among_others())
        try:
            yield
        finally:
            await asyncio.shield(self._end(alone))

    async def _begin_among_others(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone and not self._wish_to_be_alone)
            self._among_others += 1

    async def _begin_alone(self) -> None:
        async with self._changed:
            self._wish_to_be_alone += 1
            try:
                await self._changed.wait_for(lambda: not self._alone and not self._among_others)
                self._alone = True
            finally:
                self._wish_to_be_alone -= 1
                self._changed.notify_all()

    async def _end(self, alone: bool) -> None:
        async with self._changed:
            if alone:
                self._alone = False
            else:
                self._among_others -= 1
            self._changed.notify_all()
