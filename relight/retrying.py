"""Tries with growing pauses, and loops that do something every few seconds.

engines = await retry(partial(store.engines, run), StoreError, backoff=ExponentialBackoff(0.05, 1.0))

async for _ in Every(30.0):
    with logged(log, "can't compare Postgres with Temporal: %s", PostgresError, action="reconcile_failed"):
        await reconcile(db, client)
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Self, TypeVar

T = TypeVar("T")


class ExponentialBackoff:
    """Pauses between tries: each twice as long as the one before, up to a limit."""

    def __init__(
        self, first_seconds: float, longest_seconds: float, *, within_seconds: float = math.inf, jitter: bool = False
    ) -> None:
        self.next_seconds = first_seconds
        """The next pause; with `jitter` a random time between half of it and all of it."""
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._deadline = monotonic() + within_seconds
        self._jitter = jitter

    @property
    def is_over(self) -> bool:
        """Whether the time of all tries ends before the next pause does."""
        return monotonic() + self.next_seconds > self._deadline

    def reset(self) -> None:
        """Begin with the first pause again."""
        self.next_seconds = self._first_seconds

    def advance(self) -> float:
        """The next pause, for a caller that waits by itself."""
        seconds = self.next_seconds
        self.next_seconds = min(2 * seconds, self._longest_seconds)
        return seconds * random.uniform(0.5, 1.0) if self._jitter else seconds

    async def pause(self, at_least_seconds: float = 0.0) -> None:
        """Wait before the next try."""
        await asyncio.sleep(max(self.advance(), at_least_seconds))


async def retry(
    call: Callable[[], Awaitable[T]],
    *errors: type[Exception],
    backoff: ExponentialBackoff,
    on_error: Callable[[Exception], None] | None = None,
) -> T:
    """Call, and call again after each of these errors; the last one is raised when the time is over."""
    while True:
        try:
            return await call()
        except errors as error:
            if backoff.is_over:
                raise
            if on_error:
                on_error(error)
        await backoff.pause()


class Every:
    """`async for _ in Every(5.0):` runs its body now, and again 5 s after each end of it, until cancelled."""

    def __init__(self, seconds: float, *, at_once: bool = True) -> None:
        self.seconds = seconds
        self._due = at_once

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        if not self._due:
            await asyncio.sleep(self.seconds)
        self._due = False


@contextmanager
def logged(
    log: logging.Logger, message: str, *errors: type[Exception], action: str | None = None, **fields: Any
) -> Generator[None]:
    """Log one of these errors that ends the block as a warning, and suppress it. `message` has a `%s` for it."""
    try:
        yield
    except errors as error:
        log.warning(message, str(error), extra={"action": action, **fields} if action else None)
