"""How batches that run side by side share a run's concurrency."""

from __future__ import annotations


def share(limit: int, batches: int, number: int) -> int:
    """The slots of one of so many batches; each has at least one."""
    return max(limit // batches + (number < limit % batches), 1)
