"""The rollout store on Postgres: queue, attempts, spans, resources and workers, as external programs use them.

The rules are SQL functions (migration 0004), one call an operation. What arrives together (enqueuing, claiming, changes
of attempts, spans) shares a transaction and is answered after its commit. It dispatches nothing by itself: workflows
are started from the outbox, and deadlines are judged by the sweeper.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from relight.errors import NotFoundError
from relight.store import lightning_reads as reads
from relight.store import lightning_rows as rows
from relight.store.database import Database
from relight.store.ingest import SpanIngest
from relight.store.lightning_writes import Writes
from relight.store.otel_spans import span_of
from relight.store.postgres import attempt_key
from relight.store.storable import storable, storable_text
from relight.store.waits import Waits
from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, AttemptedRollout, AttemptStatus, Mode, Rollout, RolloutConfig, RolloutStatus
from relight.types.store import (
    UNSET,
    Dispatch,
    EnqueueRolloutRequest,
    FilterLogic,
    PaginatedResult,
    ResourcesUpdate,
    SortOrder,
    Span,
    Unset,
    Worker,
    WorkerStatus,
)

NAME = "PostgresLightningStore"


class PostgresLightningStore:
    """Implements `LightningStore`; any number of them may share one Postgres."""

    def __init__(self, database: Database, key: bytes, *, spans: SpanIngest, otlp_url: str | None = None) -> None:
        self.database = database
        self.spans = spans
        self.waits = Waits(database)
        self._writes = Writes(database, key)
        self._otlp_url = otlp_url
        self._born = time.monotonic()

    @classmethod
    async def create(cls, database: Database, *, spans: SpanIngest | None = None, otlp_url: str | None = None) -> Self:
        """A store on a migrated database. `spans` is the process' ingestion, so that all its spans share groups."""
        return cls(database, await attempt_key(database), spans=spans or SpanIngest(database), otlp_url=otlp_url)

    async def aclose(self) -> None:
        """Finish what is under way; the database stays open."""
        await self._writes.aclose()
        await self.spans.aclose()
        await self.waits.aclose()

    @property
    def capabilities(self) -> dict[str, bool]:
        """thread_safe, async_safe, zero_copy, otlp_traces; a missing one is false."""
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

    async def statistics(self) -> dict[str, Any]:
        """What there is, and for how long this process has been serving it."""
        counts = await self.database.row("lightning_statistics")
        return {"name": NAME, **dict(counts or {}), "uptime": time.monotonic() - self._born}

    async def start_rollout(
        self,
        input: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        """A rollout with attempt 1 at once, never queued."""
        request = EnqueueRolloutRequest.model_construct(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, dispatch=None
        )
        offer = self._writes.offer()
        row = await self.database.value(
            "start_rollout", _text(idempotency_key), rows.new_rollout(request), *offer, _text(worker_id)
        )
        return rows.attempted(row)

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        dispatch: Dispatch | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        """A rollout at the end of the queue, or with a workflow that is started once this is committed."""
        request = EnqueueRolloutRequest.model_construct(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, dispatch=dispatch
        )
        (rollout,) = await self._writes.enqueue([request], _text(idempotency_key))
        return rollout

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Several, in order, in one transaction."""
        return await self._writes.enqueue(rollouts, _text(idempotency_key)) if rollouts else []

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout in the queue."""
        claimed = await self._writes.claim(1, _text(worker_id), _text(idempotency_key))
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit`, at most 1000; none where it is 0 or less."""
        if limit <= 0:
            return []
        return await self._writes.claim(limit, _text(worker_id), _text(idempotency_key))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """One more attempt by hand, whatever `max_attempts` says."""
        row = await self.database.value("start_attempt", _id(rollout_id), *self._writes.offer(), _text(worker_id))
        return rows.attempted(row)

    async def add_span(self, span: Span) -> Span | None:
        """Keep a span, which is a sign of life of its attempt; None where it is there already."""
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
        return await self.add_span(span_of(rollout_id, attempt_id, number, readable_span))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Next number of the rollout, which all its attempts share."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """One for each pair, in order."""
        if not rollout_attempt_ids:
            return []
        rollouts, attempts = ([_id(pair[side]) for pair in rollout_attempt_ids] for side in (0, 1))
        return list(await self.database.value("take_sequence_ids", rollouts, attempts))

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        mode: Mode | None = None,
        run: str | None = None,
        step: int | None = None,
        failure_class: str | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts, each with its newest attempt where it has one. The filters from `mode` on are always ANDed."""
        return await reads.query_rollouts(
            self.database,
            _paging(filter_logic, sort_by, sort_order, limit, offset),
            status_in=status_in,
            rollout_id_in=rollout_id_in,
            rollout_id_contains=rollout_id_contains,
            mode=mode,
            run=run,
            step=step,
            failure_class=failure_class,
            reward_min=reward_min,
            reward_max=reward_max,
        )

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Attempts of a rollout; none for one that is unknown."""
        paging = _paging("and", sort_by, sort_order, limit, offset)
        return await reads.query_attempts(self.database, _id(rollout_id), paging)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """None where it is unknown."""
        row = await self.database.value("get_lightning_rollout", _id(rollout_id))
        return None if row is None else rows.rollout_of(row)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """None where there is none."""
        row = await self.database.value("get_latest_attempt", _id(rollout_id))
        return None if row is None else rows.attempt_of(row)

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """All snapshots, in the order of their making."""
        paging = _paging(filter_logic, sort_by, sort_order, limit, offset)
        return await reads.query_resources(
            self.database, paging, resources_id=resources_id, resources_id_contains=resources_id_contains
        )

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """None where it is unknown."""
        row = await self.database.row("get_lightning_resources", _id(resources_id))
        return None if row is None else rows.resources_of(row)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or updated last."""
        row = await self.database.row("get_latest_resources")
        return None if row is None else rows.resources_of(row)

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """A new snapshot, version 1."""
        row = await self.database.row("add_lightning_resources", rows.new_id("rs"), rows.resources_json(resources))
        assert row is not None, "an insert answers with its row"
        return rows.resources_of(row)

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create it, or replace what it holds and raise its version."""
        row = await self.database.row("update_lightning_resources", _id(resources_id), rows.resources_json(resources))
        assert row is not None, "an upsert answers with its row"
        return rows.resources_of(row)

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Spans of a rollout, of one attempt, or of the newest (`latest`); that scope is always ANDed."""
        filters = {
            "trace_id": (trace_id, trace_id_contains),
            "span_id": (span_id, span_id_contains),
            "parent_id": (parent_id, parent_id_contains),
            "name": (name, name_contains),
        }
        paging = _paging(filter_logic, sort_by, sort_order, limit, offset)
        return await reads.query_spans(self.database, paging, _id(rollout_id), _text(attempt_id), filters)

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Those that have ended, at once when all have, else after `timeout` seconds; None waits without end."""
        return await self.waits.wait([_id(rollout_id) for rollout_id in rollout_ids], timeout)

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any | Unset = UNSET,
        mode: Mode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Change fields. A status that ends it wakes those who wait; `requeuing` queues it."""
        given: dict[str, Any] = {"input": input, "mode": mode, "resources_id": resources_id, "status": status}
        changes = {name: storable(value) for name, value in given.items() if not isinstance(value, Unset)}
        if not isinstance(config, Unset):
            changes["config"] = rows.config_json(config)
        if not isinstance(metadata, Unset):
            changes["metadata"] = storable(metadata or {})
        return rows.rollout_of(await self.database.value("update_rollout", _id(rollout_id), changes))

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        """Change an attempt (or `latest`). Only the newest one's status moves the rollout on."""
        given: dict[str, Any] = {"status": status, "worker_id": worker_id, "last_heartbeat_time": last_heartbeat_time}
        changes = {name: storable(value) for name, value in given.items() if not isinstance(value, Unset)}
        if not isinstance(metadata, Unset):
            changes["metadata"] = storable(metadata or {})
        return await self._writes.change_attempt(
            {"rollout_id": _id(rollout_id), "attempt_id": _id(attempt_id), **changes}
        )

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """All workers."""
        paging = _paging(filter_logic, sort_by, sort_order, limit, offset)
        return await reads.query_workers(
            self.database, paging, status_in=status_in, worker_id_contains=worker_id_contains
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None where it is unknown."""
        row = await self.database.row("lightning_worker", _id(worker_id))
        return None if row is None else rows.worker_of(row)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> Worker:
        """A heartbeat. It can't set the status.

        Raises:
            TypeError: no statistics.
        """
        if heartbeat_stats is None:
            raise TypeError("heartbeat_stats: a heartbeat needs statistics; {} will do")
        row = await self.database.row("worker_heartbeat", _id(worker_id), storable(heartbeat_stats))
        assert row is not None, "an upsert answers with its row"
        return rows.worker_of(row)

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """End a rollout: its open attempt is fenced off and its token is good for nothing any more."""
        row = await self.database.value("cancel_any_rollout", _id(rollout_id), storable_text(reason))
        return rows.rollout_of(row)

    async def delete_rollout(self, rollout_id: str) -> None:
        """Remove an ended rollout of no run, with its attempts, generations and spans.

        Raises:
            ConflictError: it has not ended, or a run's ledger holds it.
        """
        await self.database.execute("delete_rollout", _id(rollout_id))


def _id(text: str) -> str:
    return storable_text(text)


def _text(text: str | None) -> str | None:
    return None if text is None else storable_text(text)


def _paging(logic: FilterLogic, sort_by: str | None, order: SortOrder, limit: int, offset: int) -> reads.Paging:
    return {"logic": logic, "sort_by": sort_by, "sort_order": order, "limit": limit, "offset": offset}
