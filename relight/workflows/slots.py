"""Slots whose number can change while they are taken: what `set_concurrency` moves.

First come, first served. Fewer slots than are taken means that none is given until enough have come back.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """`async with slots:` holds one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, limit: int) -> None:
        """Allow so many from now on."""
        self.limit = limit
        self._admit()

    async def __aenter__(self) -> None:
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given in the moment of the cancel
                self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        self.taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.taken < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self.taken += 1
                place.set_result(None)
