"""A semaphore whose limit can change while it is held, for `set_concurrency`.

It serves in order of arrival. While more hold it than the limit allows, it admits none.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ResizableSemaphore:
    """Use it as `async with semaphore:`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, limit: int) -> None:
        """Change the limit; those that hold the semaphore keep it."""
        self.limit = limit
        self._admit()

    async def __aenter__(self) -> None:
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # admitted at the moment of the cancel
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self.taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.taken < self.limit:
            admitted = self._waiting.popleft()
            if not admitted.done():
                self.taken += 1
                admitted.set_result(None)
