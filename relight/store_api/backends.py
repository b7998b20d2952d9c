"""What the service serves: the store on Postgres, or the tables of one in memory.

Each has both protocols over the same rows, and answers what the service asks of them beside the protocols.
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
from relight.store.memory.attempts import MemoryStore
from relight.store.memory.lightning import InMemoryLightningStore
from relight.store.memory.spans import MemorySpans
from relight.store.postgres import PostgresLightningStore
from relight.store.spans.ingest import SpanIngest, SpanSink
from relight.store_api.agent_tokens import Agent
from relight.types.rollout import RolloutStatus

AFTER_END_SECONDS = 60.0
"""How long a token outlives its attempt, for exporters that flush at the end; on Postgres, `agent_of_token` says so."""


class Pin(NamedTuple):
    """The resources that an attempt's rollout is pinned to."""

    rollout_id: str
    resources_id: str | None
    resources_version: int | None


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
        """What takes spans."""
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

    async def agent_of_token(self, digest: str) -> Agent | None:
        """The attempt that a token, whose hash this is, is good for."""
        ...

    async def newest_resources_version(self, resources_id: str) -> int | None:
        """None where there are no such resources."""
        ...

    async def pin_of_attempt(self, attempt_id: str) -> Pin | None:
        """None where there is no such attempt."""
        ...

    async def attempt_key(self) -> bytes:
        """What attempts' tokens are derived from."""
        ...

    async def aclose(self) -> None:
        """Finish what is under way; what the backend was made of stays open."""
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
        """Postgres answers."""
        await self.database.value("ping")

    async def agent_of_token(self, digest: str) -> Agent | None:
        """While its attempt is open, and for a minute after."""
        row = await self.database.row("agent_of_token", digest)
        return Agent(row["rollout_id"], row["attempt_id"], row["graded"]) if row else None

    async def newest_resources_version(self, resources_id: str) -> int | None:
        """One number."""
        return await self.database.value("newest_resources_version", resources_id)

    async def pin_of_attempt(self, attempt_id: str) -> Pin | None:
        """One row."""
        row = await self.database.row("pin_of_attempt", attempt_id)
        return Pin(**row) if row else None

    async def attempt_key(self) -> bytes:
        """The key of all services on this Postgres."""
        return await attempt_key(self.database)

    async def aclose(self) -> None:
        """Finish what is under way; the database stays open."""
        if self._lightning:
            await self._lightning.aclose()


class MemoryBackend:
    """A store in memory."""

    database = None

    def __init__(self, store: InMemoryLightningStore, gateway_url: str, redactor: Redactor | None = None) -> None:
        self.tables = store.tables
        self.attempts = MemoryStore(gateway_url, store.tables)
        self.spans = MemorySpans(store, redactor)
        self._lightning: LightningStore = measured(store)

    async def lightning(self) -> LightningStore:
        """The store."""
        return self._lightning

    async def check(self) -> None:
        """It is there."""

    async def agent_of_token(self, digest: str) -> Agent | None:
        """While its attempt is open, and for a minute after."""
        with self.tables.lock:
            attempt = next((row for row in self.tables.attempts.values() if row.token_hash == digest), None)
            row = attempt and self.tables.rollouts[attempt.rollout_id]
            if not attempt or not row or row.status is RolloutStatus.CANCELLED:
                return None
            if attempt.end_time is not None and attempt.end_time < time.time() - AFTER_END_SECONDS:
                return None
            graded = row.run is not None and bool(self.tables.runs[row.run].grader)
            return Agent(row.rollout_id, attempt.attempt_id, graded)

    async def newest_resources_version(self, resources_id: str) -> int | None:
        """One number."""
        newest = self.tables.resources.get(resources_id)
        return newest and newest.version

    async def pin_of_attempt(self, attempt_id: str) -> Pin | None:
        """One row."""
        with self.tables.lock:
            attempt = self.tables.attempts.get(attempt_id)
            row = attempt and self.tables.rollouts[attempt.rollout_id]
            return row and Pin(row.rollout_id, row.resources_id, row.resources_version)

    async def attempt_key(self) -> bytes:
        """The key of these tables."""
        return self.tables.key

    async def aclose(self) -> None:
        """Nothing is under way."""
