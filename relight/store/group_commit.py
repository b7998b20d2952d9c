"""Group commit: items that arrive while a transaction is under way share the next one.

Each caller is answered after its items are committed. If no transaction is under way, items are committed at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Generic, TypeVar

from relight.errors import OverloadedError
from relight.observability.metrics import GROUP_ITEMS, GROUP_SECONDS, GROUP_WAITING

Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_GROUP = 256
MAX_WAITING = 4096


class GroupCommit(Generic[Item, Result]):
    """Turns concurrent `submit`s into few calls of `flush`, which answers one result an item, in order."""

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_group: int = MAX_GROUP,
        max_waiting: int = MAX_WAITING,
        max_writers: int = 1,
        min_beside: int = 1,
        name: str = "other",
    ) -> None:
        """While a transaction is under way, another begins beside it only if `min_beside` items wait."""
        self._flush = flush
        self._max_group = max_group
        self._max_waiting = max_waiting
        self._max_writers = max_writers
        self._min_beside = min_beside
        self._waiting: deque[tuple[Sequence[Item], asyncio.Future[list[Result]]]] = deque()
        self._size = 0
        self._writers: set[asyncio.Task[None]] = set()
        self._items_metric = GROUP_ITEMS.labels(name)
        self._seconds_metric = GROUP_SECONDS.labels(name)
        self._waiting_metric = GROUP_WAITING.labels(name)

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Commit items together with those of others.

        Raises:
            OverloadedError: too many wait already.
        """
        if not items:
            return []
        if self._size + len(items) > self._max_waiting:
            raise OverloadedError(f"{self._size} items wait for their commit; try again shortly")
        done: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, done))
        self._resize(len(items))
        if not self._writers or (len(self._writers) < self._max_writers and self._size >= self._min_beside):
            self._writers.add(asyncio.create_task(self._write()))
        return await done

    async def aclose(self) -> None:
        """Wait for what is under way."""
        while self._writers:
            await asyncio.wait(self._writers)

    async def _write(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # let the requests that are being read now join
                if self._waiting:
                    await self._commit(self._take())
        finally:
            task = asyncio.current_task()
            assert task is not None, "it runs as one"
            self._writers.discard(task)

    def _take(self) -> list[tuple[Sequence[Item], asyncio.Future[list[Result]]]]:
        group = [self._waiting.popleft()]
        size = len(group[0][0])
        while self._waiting and size + len(self._waiting[0][0]) <= self._max_group:
            group.append(self._waiting.popleft())
            size += len(group[-1][0])
        self._resize(-size)
        return group

    def _resize(self, change: int) -> None:
        self._size += change
        self._waiting_metric.inc(change)

    async def _commit(self, group: list[tuple[Sequence[Item], asyncio.Future[list[Result]]]]) -> None:
        joined = [item for items, _ in group for item in items]
        self._items_metric.observe(len(joined))
        began = perf_counter()
        try:
            results = await self._flush(joined)
        except Exception as error:  # every caller of the group gets the error
            for _, done in group:
                if not done.done():
                    done.set_exception(error)
            return
        self._seconds_metric.observe(perf_counter() - began)
        start = 0
        for items, done in group:
            if not done.done():  # its caller was cancelled
                done.set_result(list(results[start : start + len(items)]))
            start += len(items)
