"""The attempt store of the service: small writes share transactions, and calls are repeated during short outages."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from relight.errors import PostgresError
from relight.observability.metrics import GENERATIONS, measured
from relight.retrying import Backoff, retry
from relight.store.attempts.base import AttemptStore
from relight.store.group_commit import GroupCommit
from relight.types.wire import CallFailure, CommitResult, DeliveryMark, GenerationRecord

Answer = TypeVar("Answer")
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5


class GroupCommitStore:
    """An `AttemptStore` with group commit, which repeats calls during short outages of Postgres."""

    def __init__(self, store: AttemptStore, retry_seconds: float = 2.0) -> None:
        self.store = measured(store)
        self.retry_seconds = retry_seconds
        self.generations: GroupCommit[tuple[GenerationRecord, float], CommitResult] = GroupCommit(
            self._commit, name="generations"
        )
        self.failures: GroupCommit[CallFailure, None] = GroupCommit(self._record_failures, name="failures")
        self.deliveries: GroupCommit[DeliveryMark, None] = GroupCommit(self._mark, name="deliveries")

    async def retried(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Call, and repeat the call while Postgres does not answer; every call of the store may be made twice."""
        within = self.retry_seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, within_seconds=within)
        return await retry(call, PostgresError, backoff=backoff)

    async def commit(self, items: Sequence[GenerationRecord]) -> list[CommitResult]:
        """Commit model calls with those of other requests; the wait is added to how long ago they began."""
        arrived = time.monotonic()
        results = await self.generations.submit([(item, arrived) for item in items])
        for result in results:
            GENERATIONS.labels(result.state).inc()
        return results

    async def aclose(self) -> None:
        """Wait for what is under way."""
        for group in (self.generations, self.failures, self.deliveries):
            await group.aclose()

    async def _commit(self, arrivals: Sequence[tuple[GenerationRecord, float]]) -> list[CommitResult]:
        def aged() -> list[GenerationRecord]:
            now = time.monotonic()
            return [
                item.model_copy(update={"duration_seconds": item.duration_seconds + now - arrived})
                for item, arrived in arrivals
            ]

        return await self.retried(lambda: self.store.commit_generations(aged()))

    async def _record_failures(self, items: Sequence[CallFailure]) -> list[None]:
        await self.retried(lambda: self.store.record_call_failures(items))
        return [None] * len(items)

    async def _mark(self, items: Sequence[DeliveryMark]) -> list[None]:
        await self.retried(lambda: self.store.mark_delivered(items))
        return [None] * len(items)
