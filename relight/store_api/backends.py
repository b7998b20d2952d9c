"""The backends of the store service: a store on Postgres, and one in memory.

A backend has the attempt store and the rollout store over the same rows, and the further queries of the service.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, Protocol

from relight.observability.metrics import measured
from relight.observability.redaction import Redactor
from relight.store.attempts.base import AttemptStore
from relight.store.attempts.postgres import attempt_key
from relight.store.base import LightningStore
from relight.store.database import Database
from relight.store.memory.attempts import MemoryAttemptStore
from relight.store.memory.lightning import InMemoryLightningStore
from relight.store.memory.rows import AttemptRow, RolloutRow
from relight.store.memory.spans import MemorySpans
from relight.store.postgres import PostgresLightningStore
from relight.store.spans.ingest import SpanIngest, SpanSink
from relight.store_api.agent_tokens import AuthenticatedAttempt
from relight.types.rollout import FailureClass, RolloutStatus

AFTER_END_SECONDS = 60.0
"""How long a token outlives its attempt, for exporters that flush at the end; on Postgres, `agent_of_token` says so."""


class PinnedResources(NamedTuple):
    """The resources that an attempt's rollout is pinned to."""

    rollout_id: str
    resources_id: str | None
    resources_version: int | None
    policy: bool
    """The engines of its run serve its model calls."""


class Backend(Protocol):
    """A store as the service needs it."""

    @property
    def database(self) -> Database | None:
        """None: the store is in memory, and has no runs, events, data sets and commands."""
        ...

    @property
    def attempts(self) -> AttemptStore:
        """The attempt store."""
        ...

    @property
    def spans(self) -> SpanSink:
        """Stores the spans that come over OTLP."""
        ...

    async def lightning(self) -> LightningStore:
        """The rollout store."""
        ...

    async def check(self) -> None:
        """Return if the store answers.

        Raises:
            PostgresError: it does not.
        """
        ...

    async def agent_of_token(self, digest: str) -> AuthenticatedAttempt | None:
        """The attempt whose token has this hash; None if there is none, or the token is no longer valid."""
        ...

    async def newest_resources_version(self, resources_id: str) -> int | None:
        """The newest version of these resources; None if there are none."""
        ...

    async def pin_of_attempt(self, attempt_id: str) -> PinnedResources | None:
        """The resources that the attempt's rollout is pinned to; None if there is no such attempt."""
        ...

    async def attempt_key(self) -> bytes:
        """The key from which the tokens of attempts are derived."""
        ...

    async def aclose(self) -> None:
        """Complete the writes under way; the store or database stays open."""
        ...


class PostgresBackend:
    """The store on Postgres."""

    def __init__(self, attempts: AttemptStore, database: Database, redactor: Redactor | None = None) -> None:
        self.attempts = attempts
        self.database = database
        self.spans = SpanIngest(database, redactor)
        self._lightning: PostgresLightningStore | None = None
        self._making = asyncio.Lock()

    async def lightning(self) -> LightningStore:
        """The rollout store, made on first use, since making it needs an event loop."""
        if self._lightning is None:
            async with self._making:
                if self._lightning is None:
                    made = await PostgresLightningStore.create(self.database, spans=self.spans)
                    self._lightning = measured(made)
        return self._lightning

    async def check(self) -> None:
        await self.database.value("ping")

    async def agent_of_token(self, digest: str) -> AuthenticatedAttempt | None:
        """The attempt, while it is open and, if it ended by itself, for a minute after."""
        row = await self.database.row("agent_of_token", digest)
        return AuthenticatedAttempt(row["rollout_id"], row["attempt_id"], row["graded"]) if row else None

    async def newest_resources_version(self, resources_id: str) -> int | None:
        return await self.database.value("newest_resources_version", resources_id)

    async def pin_of_attempt(self, attempt_id: str) -> PinnedResources | None:
        row = await self.database.row("pin_of_attempt", attempt_id)
        return PinnedResources(**row) if row else None

    async def attempt_key(self) -> bytes:
        """The key of all services on this Postgres."""
        return await attempt_key(self.database)

    async def aclose(self) -> None:
        """Complete the writes under way; the database stays open."""
        if self._lightning:
            await self._lightning.aclose()


def _may_flush(attempt: AttemptRow, rollout: RolloutRow) -> bool:
    """Whether an attempt that has ended may still send spans: it ended by itself, not long ago, and is the newest."""
    by_itself = attempt.failure_class in (None, FailureClass.AGENT_ERROR)
    recent = attempt.end_time is not None and attempt.end_time > time.time() - AFTER_END_SECONDS
    return by_itself and recent and rollout.attempts[-1] is attempt


class MemoryBackend:
    """A store in memory."""

    database = None

    def __init__(self, store: InMemoryLightningStore, gateway_url: str, redactor: Redactor | None = None) -> None:
        self.tables = store.tables
        self.attempts = MemoryAttemptStore(gateway_url, store.tables)
        self.spans = MemorySpans(store, redactor)
        self._lightning: LightningStore = measured(store)

    async def lightning(self) -> LightningStore:
        return self._lightning

    async def check(self) -> None:
        """A store in memory always answers."""

    async def agent_of_token(self, digest: str) -> AuthenticatedAttempt | None:
        """The attempt, while it is open and, if it ended by itself, for a minute after."""
        with self.tables.lock:
            attempt = next((row for row in self.tables.attempts.values() if row.token_hash == digest), None)
            row = attempt and self.tables.rollouts[attempt.rollout_id]
            if not attempt or not row or row.status is RolloutStatus.CANCELLED:
                return None
            if attempt.end_time is not None and not _may_flush(attempt, row):
                return None
            graded = not row.by_queue and bool(self.tables.run_of(row).grader)
            return AuthenticatedAttempt(row.rollout_id, attempt.attempt_id, graded)

    async def newest_resources_version(self, resources_id: str) -> int | None:
        newest = self.tables.resources.get(resources_id)
        return newest and newest.version

    async def pin_of_attempt(self, attempt_id: str) -> PinnedResources | None:
        with self.tables.lock:
            attempt = self.tables.attempts.get(attempt_id)
            row = attempt and self.tables.rollouts[attempt.rollout_id]
            policy = row is not None and self.tables.has_engines(row)
            return row and PinnedResources(row.rollout_id, row.resources_id, row.resources_version, policy)

    async def attempt_key(self) -> bytes:
        """The key of the store's tables."""
        return self.tables.key

    async def aclose(self) -> None:
        """There is nothing to complete."""
