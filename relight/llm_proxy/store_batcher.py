"""Batches calls to the store: while one request is under way, the items of the next one are collected.

A batch may also wait for further items, since a request costs gateway, store and Postgres far more than an additional
item. While the store does not answer, a batch is repeated with the same content. Nothing is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from relight.errors import OverloadedError, RelightError, StoreError
from relight.retrying import Backoff, retry

T = TypeVar("T")
R = TypeVar("R")
Send = Callable[[list[T]], Awaitable[Sequence[R] | None]]
Linger = Callable[[int], float]
"""Seconds that a batch of this many items waits for more; 0: it is sent."""

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0


class Batcher(Generic[T, R]):
    """Sends what is submitted in batches, one request at a time, in order."""

    def __init__(self, name: str, send: Send[T, R], linger: Linger = lambda _: 0.0, limit: int = 256) -> None:
        self._name = name
        self._send = send
        self._linger = linger
        self._limit = limit
        self._queue: list[tuple[T, asyncio.Future[R | None]]] = []
        self._sending: list[tuple[T, asyncio.Future[R | None]]] = []
        self._filled = asyncio.Event()
        self._send_now = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, item: T, urgent: bool = False) -> asyncio.Future[R | None]:
        """Queue an item. The future has the store's result; it need not be awaited."""
        future: asyncio.Future[R | None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(self._reported)
        self._queue.append((item, future))
        self._idle.clear()
        self._filled.set()
        if urgent or not self._linger(len(self._queue)):
            self.send_now()
        return future

    def send_now(self) -> None:
        """Send the batch without waiting for more."""
        self._send_now.set()

    def _reported(self, future: asyncio.Future[R | None]) -> None:
        if not future.cancelled() and (error := future.exception()):
            log.error("%s refused error=%r", self._name, str(error))

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._filled.wait()
            await self._gather()
            batch, self._queue = self._queue[: self._limit], self._queue[self._limit :]
            if not self._queue:
                self._filled.clear()
                self._send_now.clear()
            self._sending = batch
            await self._deliver(batch)
            if not self._queue:
                self._idle.set()

    async def _gather(self) -> None:
        if self._send_now.is_set():
            return
        try:
            async with asyncio.timeout(self._linger(len(self._queue))):
                await self._send_now.wait()
        except TimeoutError:
            return

    async def drain(self) -> None:
        """Wait until everything that was submitted is sent."""
        self._send_now.set()
        await self._idle.wait()

    def close(self) -> None:
        """Fail the items that are still queued."""
        for _, future in self._queue + self._sending:
            settle(future, error=StoreError("the gateway stopped before the store answered"))

    async def _deliver(self, batch: list[tuple[T, asyncio.Future[R | None]]]) -> None:
        try:
            results = await self._send_with_retries([item for item, _ in batch])
        except RelightError as error:
            if len(batch) == 1:
                settle(batch[0][1], error=error)
                return
            for entry in batch:  # an invalid item must not fail the others
                await self._deliver([entry])
            return
        for number, (_, future) in enumerate(batch):
            settle(future, results[number] if results is not None else None)

    async def _send_with_retries(self, items: list[T]) -> Sequence[R] | None:
        async def on_error(error: Exception) -> None:
            log.warning("%s waits for the store items=%d reason=%r", self._name, len(items), str(error))

        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        return await retry(lambda: self._send(items), StoreError, OverloadedError, backoff=backoff, on_error=on_error)


def settle(future: asyncio.Future[R | None], result: R | None = None, error: Exception | None = None) -> None:
    """Set the result of a future that may have been cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
