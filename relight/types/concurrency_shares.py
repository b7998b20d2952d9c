"""Divides a run's concurrency limit among the batches that run at once."""

from __future__ import annotations


def share(limit: int, batches: int, number: int) -> int:
    """The share of one batch of `batches`; at least 1."""
    return max(limit // batches + (number < limit % batches), 1)
