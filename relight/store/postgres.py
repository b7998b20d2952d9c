"""The rollout store on Postgres: queue, attempts, spans, resources and workers.

The rules are SQL functions (`schema/12_queue.sql`, `schema/13_external_rollouts.sql`), one call for each operation.
Concurrent requests (enqueuing, claiming, changes of attempts, spans) share a transaction and are answered after its
commit. It dispatches nothing itself: workflows are started from the outbox, and the sweeper checks deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self, cast

from relight.errors import NotFoundError
from relight.store.attempts.postgres import attempt_key
from relight.store.base import Changes, LightningStore
from relight.store.database import Database
from relight.store.queue import query_tables, rows
from relight.store.queue.idempotency_keys import rollouts_hash
from relight.store.queue.query_tables import Select
from relight.store.queue.reads import find, query_spans
from relight.store.queue.rollout_waits import Waits
from relight.store.queue.rules import statistics_of, unknown_resources
from relight.store.queue.writes import Writes
from relight.store.spans.ingest import SpanIngest
from relight.store.storable import optional_text, storable, storable_text
from relight.types.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, AttemptedRollout, Rollout
from relight.types.store import (
    UNSET,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Unset,
    Worker,
)
from relight.types.tracer import Span

NAME = "PostgresLightningStore"
_id, _text = storable_text, optional_text


class PostgresLightningStore(LightningStore):
    """`LightningStore` over Postgres; any number of them may share one Postgres."""

    def __init__(self, database: Database, key: bytes, *, spans: SpanIngest, otlp_url: str | None = None) -> None:
        self.database = database
        self.spans = spans
        self.waits = Waits(database)
        self._writes = Writes(database, key)
        self._otlp_url = otlp_url
        self._born = time.monotonic()

    @classmethod
    async def create(cls, database: Database, *, spans: SpanIngest | None = None, otlp_url: str | None = None) -> Self:
        """A store on a migrated database. `spans`: the process' ingestion, so that all its spans share transactions."""
        return cls(database, await attempt_key(database), spans=spans or SpanIngest(database), otlp_url=otlp_url)

    async def aclose(self) -> None:
        """Finish what is under way; the database stays open."""
        await self._writes.aclose()
        await self.spans.aclose()
        await self.waits.aclose()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {
            "thread_safe": False,
            "async_safe": True,
            "zero_copy": False,
            "otlp_traces": self._otlp_url is not None,
        }

    def otlp_traces_endpoint(self) -> str:
        """URL that spans are exported to.

        Raises:
            NotImplementedError: this store has no service in front.
        """
        if self._otlp_url is None:
            raise NotImplementedError("this store takes no OTLP; the store service does, under /v1/traces")
        return self._otlp_url

    async def statistics(self) -> LightningStoreStatistics:
        """What there is, and for how long this process has been serving it."""
        counts = await self.database.row("lightning_statistics")
        held = {"name": NAME, **dict(counts or {}), "uptime": time.monotonic() - self._born}
        return cast("LightningStoreStatistics", held)

    async def _start_rollout(
        self, request: EnqueueRolloutRequest, worker_id: str | None, idempotency_key: str | None
    ) -> AttemptedRollout:
        key, attempt = _text(idempotency_key), self._writes.new_attempt()
        request = rows.checked_request(request)
        given = rows.new_rollout(request) | {
            "request_hash": None if key is None else rollouts_hash([request], worker_id)
        }
        row = await self.database.value("start_rollout", key, given, *attempt, _text(worker_id))
        return AttemptedRollout.model_validate(row)

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Several, in order, in one transaction; those with a workflow are started once it is committed."""
        if not rollouts:
            return []
        rollouts = rows.checked_requests(rollouts)
        by_workflow = [request for request in rollouts if request.dispatch and request.dispatch.by == "workflow"]
        named = {request.resources_id for request in by_workflow if request.resources_id is not None}
        if named and (unknown := await self.database.row("unknown_resources", sorted(named))):
            raise unknown_resources(unknown["resources_id"])
        return await self._writes.enqueue(rollouts, _text(idempotency_key))

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit`, at most 1000; none where it is 0 or less."""
        if limit <= 0:
            return []
        return await self._writes.claim(limit, _text(worker_id), _text(idempotency_key))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        row = await self.database.value("start_attempt", _id(rollout_id), *self._writes.new_attempt(), _text(worker_id))
        return AttemptedRollout.model_validate(row)

    async def add_span(self, span: Span) -> Span | None:
        stored = await self.spans.add([span])
        return stored[0] if stored else None

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Keep spans; those that were new. An unknown attempt among them: none is kept."""
        pairs = {(span.rollout_id, span.attempt_id) for span in spans}
        if len(pairs) > 1:
            ids = [[_id(pair[side]) for pair in pairs] for side in (0, 1)]
            if unknown := await self.database.row("unknown_attempts", *ids):
                raise NotFoundError(f"rollout {unknown['rollout_id']} has no attempt {unknown['attempt_id']}")
        return await self.spans.add(spans)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Keep an OpenTelemetry `ReadableSpan`; without a number it gets the next one."""
        number = -1 if sequence_id is None else sequence_id
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, number))

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        if not rollout_attempt_ids:
            return []
        rollouts, attempts = ([_id(pair[side]) for pair in rollout_attempt_ids] for side in (0, 1))
        return list(await self.database.value("take_sequence_ids", rollouts, attempts))

    async def _query_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout]:
        return await find(self.database, Select(query_tables.ROLLOUTS, query), lambda row: rows.rollout_of(row["row"]))

    async def _query_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        select = Select(query_tables.ATTEMPTS, query)
        select.must("rollout_id = {}", _id(rollout_id))
        return await find(self.database, select, lambda row: Attempt.model_validate(row["row"]))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        row = await self.database.value("get_lightning_rollout", _id(rollout_id))
        return None if row is None else rows.rollout_of(row)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        row = await self.database.value("get_latest_attempt", _id(rollout_id))
        return None if row is None else Attempt.model_validate(row)

    async def _query_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        return await find(self.database, Select(query_tables.RESOURCES, query), rows.resources_of)

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        row = await self.database.row("get_lightning_resources", _id(resources_id), version)
        return None if row is None else rows.resources_of(row)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        row = await self.database.row("get_latest_resources")
        return None if row is None else rows.resources_of(row)

    async def add_resources(self, resources: NamedResources, *, idempotency_key: str | None = None) -> ResourcesUpdate:
        key = _text(idempotency_key)
        resources_id = rows.new_resources_id(key)
        row = await self.database.row("add_lightning_resources", resources_id, rows.resources_json(resources))
        kept = row or await self.database.one("get_lightning_resources", resources_id, 1)
        return rows.of_key(rows.resources_of(kept), resources, key)

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        row = await self.database.one("update_lightning_resources", _id(resources_id), rows.resources_json(resources))
        return rows.resources_of(row)

    async def _query_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        return await query_spans(self.database, query)

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        return await self.waits.wait([_id(rollout_id) for rollout_id in rollout_ids], timeout)

    async def _update_rollout(self, rollout_id: str, changes: Changes) -> Rollout:
        row = {
            name: rows.config_json(value) if name == "config" else storable(value, name)
            for name, value in changes.items()
        }
        return rows.rollout_of(await self.database.value("update_rollout", _id(rollout_id), row))

    async def _update_attempt(self, rollout_id: str, attempt_id: str, changes: Changes) -> Attempt:
        ids = {"rollout_id": _id(rollout_id), "attempt_id": _id(attempt_id)}
        return await self._writes.change_attempt(ids | {name: storable(value, name) for name, value in changes.items()})

    async def _query_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        return await find(self.database, Select(query_tables.WORKERS, query), rows.worker_of)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        row = await self.database.row("lightning_worker", _id(worker_id))
        return None if row is None else rows.worker_of(row)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        stats = statistics_of(heartbeat_stats)
        stored = None if stats is None else storable(stats, "heartbeat_stats")
        row = await self.database.one("worker_heartbeat", _id(worker_id), stored)
        return rows.worker_of(row)

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        row = await self.database.value("cancel_any_rollout", _id(rollout_id), storable_text(reason))
        return rows.rollout_of(row)

    async def delete_rollout(self, rollout_id: str) -> None:
        await self.database.execute("delete_rollout", _id(rollout_id))
