"""Enqueuing, claiming and changes of attempts; concurrent requests share a transaction.

A request that Postgres refuses is found by halving the group, and only this one fails. Requests are answered after the
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from relight.errors import ConflictError, InvalidRequestError, NotFoundError, RelightError
from relight.store.attempts.attempt_tokens import attempt_token, new_attempt_id, token_hash
from relight.store.database import Database
from relight.store.group_commit import GroupCommit
from relight.store.queue import rows
from relight.store.queue.idempotency_keys import request_hash, rollouts_hash
from relight.types.rollout import Attempt, AttemptedRollout, Rollout
from relight.types.store import EnqueueRolloutRequest

MAX_CLAIM = 1000
"""Most rollouts that one call claims."""
REFUSALS = (NotFoundError, ConflictError, InvalidRequestError)
Item = dict[str, Any]


class NewAttempt(NamedTuple):
    """An attempt that may be begun."""

    attempt_id: str
    token_hash: str


class Writes:
    """The writes that share transactions; one object for each process is enough."""

    def __init__(self, database: Database, key: bytes) -> None:
        self.database = database
        self._key = key
        self._enqueued: GroupCommit[Item, Any] = self._group("enqueue_rollouts")
        self._claimed: GroupCommit[Item, Any] = self._group("dequeue_rollouts")
        self._changed: GroupCommit[Item, Any] = self._group("update_attempts")

    def _group(self, name: str) -> GroupCommit[Item, Any]:
        return GroupCommit(lambda items: self._flush(name, items), name=name)

    async def enqueue(self, requests: Sequence[EnqueueRolloutRequest], key: str | None) -> list[Rollout]:
        """Rollouts at the end of the queue, in order."""
        made = [rows.new_rollout(request) for request in requests]
        item = {"key": key, "request_hash": None if key is None else rollouts_hash(requests), "rollouts": made}
        return [rows.rollout_of(row) for row in await _one(self._enqueued, item)]

    async def claim(self, limit: int, worker_id: str | None, key: str | None) -> list[AttemptedRollout]:
        """The oldest rollouts of the queue, each with its next attempt."""
        attempts = [self.new_attempt()._asdict() for _ in range(min(limit, MAX_CLAIM))]
        hashed = None if key is None else request_hash(limit, worker_id)
        item = {"key": key, "request_hash": hashed, "worker_id": worker_id, "attempts": attempts}
        return [AttemptedRollout.model_validate(row) for row in await _one(self._claimed, item)]

    async def change_attempt(self, changes: Item) -> Attempt:
        """Change an attempt; the keys that are there are set."""
        return Attempt.model_validate(await _one(self._changed, changes))

    def new_attempt(self) -> NewAttempt:
        """A new attempt's id, and what is stored of its token."""
        attempt_id = new_attempt_id()
        return NewAttempt(attempt_id, token_hash(attempt_token(self._key, attempt_id)))

    async def aclose(self) -> None:
        """Wait for what is under way."""
        for group in (self._enqueued, self._claimed, self._changed):
            await group.aclose()

    async def _flush(self, name: str, items: Sequence[Item]) -> Sequence[Any]:
        try:
            return await self.database.value(name, items)
        except REFUSALS as error:
            if len(items) == 1:
                return [error]
        middle = len(items) // 2
        return [*await self._flush(name, items[:middle]), *await self._flush(name, items[middle:])]


async def _one(group: GroupCommit[Item, Any], item: Item) -> Any:
    (answer,) = await group.submit([item])
    if isinstance(answer, RelightError):
        raise answer
    return answer
