"""Tries with growing pauses, loops that do something every few seconds, and tasks that run beside a block.

engines = await retry(partial(store.engines, run), StoreError, backoff=Backoff(0.05, 1.0))

async for _ in Every(30.0):
    with logged(log, "can't compare Postgres with Temporal: %s", PostgresError, action="reconcile_failed"):
        await reconcile(db, client)

async with in_background(send_heartbeats()):
    await work()
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any, Self, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Backoff:
    """`async for _ in Backoff(0.1, 5.0):` repeats its body after pauses that double up to a limit, until cancelled.

    With `jitter` each pause takes between half and all of its time. While `wake` is set there are none.
    """

    def __init__(
        self, first_seconds: float, longest_seconds: float, *, within_seconds: float = math.inf, jitter: bool = False
    ) -> None:
        self.seconds = first_seconds
        """The next pause."""
        self.wake = asyncio.Event()
        self._due = True
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._deadline = monotonic() + within_seconds
        self._jitter = jitter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        if not self._due:
            await self.pause()
        self._due = False

    @property
    def is_over(self) -> bool:
        """Whether the time of all tries, `within_seconds`, ends before the next pause does."""
        return monotonic() + self.seconds > self._deadline

    def reset(self) -> None:
        """Begin with the first pause again."""
        self.seconds = self._first_seconds

    def advance(self) -> float:
        """The length of this pause; the next one is longer."""
        seconds = self.seconds
        self.seconds = min(2 * seconds, self._longest_seconds)
        return seconds * random.uniform(0.5, 1.0) if self._jitter else seconds

    async def pause(self, at_least_seconds: float = 0.0) -> None:
        """Wait before the next try."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self.advance(), at_least_seconds)):
                await self.wake.wait()


class Every(Backoff):
    """`async for _ in Every(5.0):` runs its body now, and again 5 s after each end of it, until cancelled."""

    def __init__(self, seconds: float, *, at_once: bool = True, wake: asyncio.Event | None = None) -> None:
        super().__init__(seconds, seconds)
        self.wake = wake or self.wake
        self._due = at_once


async def retry(
    call: Callable[[], Awaitable[T]],
    *errors: type[E],
    backoff: Backoff,
    on_error: Callable[[E], Awaitable[float | None]] | None = None,
) -> T:
    """Call, and call again after each of these errors; the last one is raised when the time is over.

    `on_error` may raise another error, and returns how long the pause must be at least.
    """
    while True:
        try:
            return await call()
        except errors as error:
            if backoff.is_over:
                raise
            at_least_seconds = await on_error(error) if on_error else None
        await backoff.pause(at_least_seconds or 0.0)


@asynccontextmanager
async def in_background(*work: Coroutine[Any, Any, T]) -> AsyncGenerator[list[asyncio.Task[T]]]:
    """Run these in tasks until the end of the block, which cancels them and waits for their end. Asyncio logs an error
    of a task whose result nobody has taken.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@contextmanager
def logged(
    log: logging.Logger, message: str, *errors: type[Exception], action: str | None = None, **fields: Any
) -> Generator[None]:
    """Log one of these errors that ends the block as a warning, and suppress it. `message` has a `%s` for it."""
    try:
        yield
    except errors as error:
        log.warning(message, str(error), extra={"action": action, **fields} if action else None)
