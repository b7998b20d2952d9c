"""How many bytes of requests are held at once: charged as they come in, and returned when their request has ended."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


class ByteBudget:
    """Bytes that some requests together may take; `refusal` makes the error of a request that would take more."""

    def __init__(self, limit: int, refusal: Callable[[int], Exception]) -> None:
        self.limit = limit
        self.held = 0
        self._refusal = refusal

    def check(self, size: int) -> None:
        """Raise the refusal if these bytes are too many now."""
        if self.held + size > self.limit:
            raise self._refusal(self.limit)


@contextmanager
def held_bytes(*budgets: ByteBudget) -> Generator[Callable[[int], None]]:
    """A function that takes bytes from all of these budgets, or from none; the end of the block returns them."""
    held = 0

    def take(size: int) -> None:
        nonlocal held
        for budget in budgets:
            budget.check(size)
        for budget in budgets:
            budget.held += size
        held += size

    try:
        yield take
    finally:
        for budget in budgets:
            budget.held -= held
