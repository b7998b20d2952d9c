"""The in-memory rollout store, with the same rules as on Postgres, for tests and for trying an algorithm out.

One lock is held briefly and never across an await, so any number of threads and event loops may use one store.
Arguments and results are copied. Nothing survives the process, nothing is evicted and no workflow is started. Deadlines
are checked when `sweep` is called, or periodically after `keep_sweeping`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, cast

from pydantic import BaseModel

from relight.errors import ConflictError, InvalidRequestError
from relight.store.base import Changes, LightningStore
from relight.store.memory.pages import find
from relight.store.memory.rows import AttemptRow, RolloutRow
from relight.store.memory.tables import KeptRequest, Tables, storable_span
from relight.store.memory.trace import RolloutTrace
from relight.store.queue import query_tables, rules
from relight.store.queue.idempotency_keys import refusal, request_hash, rollouts_hash
from relight.store.queue.rows import (
    checked_request,
    checked_requests,
    checked_resources,
    new_id,
    new_resources_id,
    of_key,
)
from relight.store.storable import optional_text, storable, storable_text
from relight.types.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from relight.types.resources import NamedResources
from relight.types.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    FailureClass,
    Rollout,
    RolloutConfig,
    RolloutStatus,
)
from relight.types.store import (
    UNSET,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Unset,
    Worker,
    WorkerStatus,
)
from relight.types.tracer import NEXT_NUMBER, Span

PERIOD_SECONDS = 0.5
STORABLE = frozenset({"input", "mode", "metadata", "resources_id"})
"""Fields of a rollout that are set as they are given."""
M = TypeVar("M", bound=BaseModel)


class InMemoryLightningStore(LightningStore):
    """The in-memory `LightningStore`."""

    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables or Tables()
        self._started = time.monotonic()
        self._sweeper: Sweeper | None = None

    def keep_sweeping(self, period_seconds: float = PERIOD_SECONDS) -> Self:
        """Check deadlines periodically from now on, in a thread."""
        self._sweeper = self._sweeper or Sweeper(self._sweep, period_seconds)
        return self

    async def aclose(self) -> None:
        """Stop the periodic checks."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper:
            sweeper.close()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The capabilities of this store."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    def otlp_traces_endpoint(self) -> str:
        """Raises NotImplementedError: a store in memory has no endpoint."""
        raise NotImplementedError("a store in memory has no OTLP endpoint; serve it by a LightningStoreServer for one")

    async def statistics(self) -> LightningStoreStatistics:
        """Counts of the rows."""
        with self.tables.lock:
            counts = self.tables.counts()
        held = {"name": type(self).__name__, **counts, "uptime": time.monotonic() - self._started}
        return cast("LightningStoreStatistics", held)

    async def sweep(self) -> list[Attempt]:
        """Check deadlines once; returns the attempts that were overdue."""
        return self._sweep()

    def _sweep(self) -> list[Attempt]:
        with self.tables.lock:
            return [_copy(attempt.shown()) for attempt in self.tables.sweep()]

    # Into the queue and out of it

    async def _start_rollout(
        self, request: EnqueueRolloutRequest, worker_id: str | None, idempotency_key: str | None
    ) -> AttemptedRollout:
        request = checked_request(request)
        with self.tables.lock:
            hashed = rollouts_hash([request], worker_id)
            if made := self._made("start", idempotency_key, hashed):
                return made[0]
            claimed = self._claim(self._new(request), optional_text(worker_id))
            self._remember("start", idempotency_key, hashed, [claimed])
            return claimed

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Append several rollouts, in order; all or none."""
        rollouts = checked_requests(rollouts)
        with self.tables.lock:
            hashed = rollouts_hash(rollouts)
            if known := self._known("enqueue", idempotency_key, hashed):
                rows = [self.tables.rollouts[made] for made, _ in known if made in self.tables.rollouts]
                return [_copy(row.shown()) for row in rows]
            for request in rollouts:
                self._check(request)
            made = [_copy(self._new(request).shown()) for request in rollouts]
            if idempotency_key is not None:
                ids = [(rollout.rollout_id, "") for rollout in made]
                self.tables.keys["enqueue", idempotency_key] = KeptRequest(hashed, ids)
            return made

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        if limit <= 0:
            return []
        worker_id = optional_text(worker_id)
        with self.tables.lock:
            hashed = request_hash(limit, worker_id)
            if made := self._made("dequeue", idempotency_key, hashed):
                return made
            claimed = [self._claim(row, worker_id, dequeued=True) for row in self.tables.queue(limit)]
            if claimed:
                self._remember("dequeue", idempotency_key, hashed, claimed)
            elif worker_id is not None:
                self.tables.set_worker(worker_id, WorkerStatus.IDLE, dequeued=True)
            return claimed

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        with self.tables.lock:
            row = self.tables.queued_row(rollout_id)
            if row.status is RolloutStatus.CANCELLED:
                raise ConflictError(f"rollout {rollout_id} is cancelled")
            self._check_revival(row)
            return self._claim(row, optional_text(worker_id))

    def _check_revival(self, row: RolloutRow) -> None:
        if row.status in rules.ENDED and row.run is not None:
            self.tables.require_unfinished(row.run)

    def _check(self, request: EnqueueRolloutRequest) -> None:
        if request.run is not None:
            self.tables.require_unfinished(request.run)
        dispatch = request.dispatch
        if dispatch is None or dispatch.by == "queue":
            return
        if not (dispatch.agent or dispatch.task_queue):
            raise InvalidRequestError(rules.NO_TASK_QUEUE)
        if request.resources_id is not None and request.resources_id not in self.tables.resources:
            raise rules.unknown_resources(request.resources_id)

    def _new(self, request: EnqueueRolloutRequest) -> RolloutRow:
        self._check(request)
        row = RolloutRow(
            rollout_id=(rollout_id := new_id("ro")),
            by_queue=request.dispatch is None or request.dispatch.by == "queue",
            run=request.run,
            seed_base=rollout_id,
            input=request.input,
            mode=request.mode,
            config=(request.config or RolloutConfig()).model_copy(deep=True),
            metadata=request.metadata or {},
        )
        self.tables.rollouts[rollout_id] = row
        usual = self.tables.run_of(row).resources_id if row.run else self.tables.newest_resources
        self.tables.pin(row, usual if request.resources_id is None else request.resources_id)
        self.tables.set_status(row, RolloutStatus.QUEUING)
        return row

    def _claim(self, row: RolloutRow, worker_id: str | None, *, dequeued: bool = False) -> AttemptedRollout:
        return _copy(row.attempted(self.tables.begin_attempt(row, worker_id, dequeued=dequeued)))

    def _known(self, operation: str, key: str | None, hashed: str) -> Sequence[tuple[str, str]]:
        """What the request with this key made."""
        kept = self.tables.keys.get((operation, key)) if key is not None else None
        if key is not None and kept is not None and kept.request_hash != hashed:
            raise InvalidRequestError(refusal(key))
        return kept.made if kept else []

    def _made(self, operation: str, key: str | None, hashed: str) -> list[AttemptedRollout]:
        made = self._known(operation, key, hashed)
        rows = [(self.tables.rollouts.get(rollout_id), attempt_id) for rollout_id, attempt_id in made]
        return [_copy(row.attempted(row.attempt(attempt_id))) for row, attempt_id in rows if row]

    def _remember(self, operation: str, key: str | None, hashed: str, made: Sequence[AttemptedRollout]) -> None:
        if key is not None:
            ids = [(row.rollout_id, row.attempt.attempt_id) for row in made]
            self.tables.keys[operation, key] = KeptRequest(hashed, ids)

    # Rollouts and attempts

    async def _update_rollout(self, rollout_id: str, changes: Changes) -> Rollout:
        values = {name: storable(changes[name], name) for name in changes.keys() & STORABLE}
        with self.tables.lock:
            row = self.tables.queued_row(rollout_id)
            wanted = RolloutStatus(changes.get("status", row.status))
            if not rules.may_become(row.status, wanted):
                raise ConflictError(f"rollout {rollout_id} is {row.status} and can not become {wanted}")
            if wanted not in rules.ENDED:
                self._check_revival(row)
            if "resources_id" in changes:
                self.tables.pin(row, values["resources_id"])
            if "config" in changes:
                row.config = changes["config"].model_copy(deep=True)
            for name in values.keys() - {"resources_id"}:
                setattr(row, name, values[name])
            self._set_status_by_hand(row, wanted)
            if "status" in changes:
                row.due = 0.0
            return _copy(row.shown())

    def _set_status_by_hand(self, row: RolloutRow, status: RolloutStatus) -> None:
        self.tables.set_status(row, status)
        if status not in rules.ENDED:
            row.reward = None
        if status is RolloutStatus.CANCELLED:
            row.failure_class = FailureClass.CANCELLED
            self.tables.end_open_attempt(row, FailureClass.CANCELLED)
        elif status is RolloutStatus.FAILED:
            row.failure_class = row.failure_class or FailureClass.AGENT_ERROR
        else:
            row.failure_class = None

    async def _update_attempt(self, rollout_id: str, attempt_id: str, changes: Changes) -> Attempt:
        values = {name: storable(changes[name], name) for name in changes.keys() - {"status"}}
        with self.tables.lock:
            row = self.tables.queued_row(rollout_id)
            attempt = row.attempt(attempt_id)
            wanted = AttemptStatus(changes.get("status", attempt.status))
            if wanted is not attempt.status:
                _check_status(row, attempt, wanted)
            for name, value in values.items():
                setattr(attempt, name, value)
            if wanted is not attempt.status:
                self.tables.set_attempt_status(row, attempt, wanted)
            self.tables.follow_worker(attempt)
            return _copy(attempt.shown())

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """End a rollout, and its open attempt."""
        with self.tables.lock:
            row = self.tables.row(rollout_id)
            if not row.outside:
                raise ConflictError(f"rollout {rollout_id} belongs to run {row.run}, which decides about it")
            if row.status in rules.ENDED - {RolloutStatus.CANCELLED}:
                raise ConflictError(f"rollout {rollout_id} is {row.status} already")
            if row.status is not RolloutStatus.CANCELLED:
                self.tables.cancel(row, reason)
            return _copy(row.shown())

    async def delete_rollout(self, rollout_id: str) -> None:
        with self.tables.lock:
            row = self.tables.row(rollout_id)
            if not row.outside:
                raise ConflictError(f"rollout {rollout_id} belongs to a run")
            if row.status not in rules.ENDED:
                raise ConflictError(f"rollout {rollout_id} is {row.status}; cancel it first")
            del self.tables.rollouts[rollout_id]
            for attempt in row.attempts:
                del self.tables.attempts[attempt.attempt_id]
            for worker in self.tables.workers.values():
                if worker.current_rollout_id == rollout_id:
                    worker.current_rollout_id = worker.current_attempt_id = None

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        with self.tables.lock:
            row = self.tables.rollouts.get(rollout_id)
            return _copy(row.shown()) if row else None

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        with self.tables.lock:
            row = self.tables.rollouts.get(rollout_id)
            return _copy(row.newest.shown()) if row and row.newest else None

    async def _query_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout]:
        with self.tables.lock:
            return find([row.shown() for row in self.tables.rollouts.values()], query, query_tables.ROLLOUTS)

    async def _query_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        with self.tables.lock:
            row = self.tables.rollouts.get(rollout_id)
            return find([attempt.shown() for attempt in row.attempts] if row else [], query, query_tables.ATTEMPTS)

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """The rollouts that have ended; unknown ids are ignored."""
        await self.tables.waiters.wait(rollout_ids, lambda: self._open(rollout_ids), timeout)
        with self.tables.lock:
            rows = [self.tables.rollouts.get(rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
            found = [row.shown() for row in rows if row and row.status in rules.ENDED]
            return [_copy(rollout) for rollout in found]

    def _open(self, rollout_ids: Sequence[str]) -> bool:
        with self.tables.lock:
            rows = [self.tables.rollouts.get(rollout_id) for rollout_id in rollout_ids]
            return any(row and row.status not in rules.ENDED for row in rows)

    # Spans

    async def add_span(self, span: Span) -> Span | None:
        """Store a span; None if it was stored before."""
        with self.tables.lock:
            return self._add_span(span)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans; returns those that were new. If an attempt is unknown, none is stored."""
        with self.tables.lock:
            for span in spans:
                self.tables.owner(span)
                storable_span(span)
            kept = [self._add_span(span) for span in spans]
        return [span for span in kept if span]

    def _add_span(self, span: Span) -> Span | None:
        row, attempt = self.tables.owner(span)
        kept = self.tables.add_span(span)
        if row.by_queue:
            self.tables.alive(row, attempt)
        return kept and _copy(kept)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        number = NEXT_NUMBER if sequence_id is None else sequence_id
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, number))

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        with self.tables.lock:
            rows = [self.tables.row(rollout_id) for rollout_id, _ in rollout_attempt_ids]
            for row, (_, attempt_id) in zip(rows, rollout_attempt_ids, strict=True):
                row.attempt(attempt_id)
            numbers: list[int] = []
            for row in rows:
                numbers.append(row.next_sequence)
                row.next_sequence += 1
            return numbers

    async def _query_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        with self.tables.lock:
            row = self.tables.rollouts.get(query.rollout_id)
            if row is None:
                return find((), query, query_tables.SPANS)
            trace = RolloutTrace(row, query.attempt_id)
            found = find(trace.spans, query, query_tables.SPANS)
            trace.complete(found)
            return found

    # Resources and workers

    async def add_resources(self, resources: NamedResources, *, idempotency_key: str | None = None) -> ResourcesUpdate:
        key = optional_text(idempotency_key)
        resources_id = new_resources_id(key)
        with self.tables.lock:
            if kept := self.tables.versions.get((resources_id, 1)):
                return _copy(of_key(kept, resources, key))
            return await self.update_resources(resources_id, resources)

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        resources = checked_resources(resources)
        with self.tables.lock:
            return _copy(self.tables.set_resources(storable_text(resources_id), resources))

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        resources_id = storable_text(resources_id)
        with self.tables.lock:
            tables = self.tables
            snapshot = tables.versions.get((resources_id, version)) if version else tables.resources.get(resources_id)
            return snapshot and _copy(snapshot)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        with self.tables.lock:
            newest = self.tables.newest_resources
            return await self.get_resources_by_id(newest) if newest is not None else None

    async def _query_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        with self.tables.lock:
            return find(self.tables.resources.values(), query, query_tables.RESOURCES)

    async def _query_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        with self.tables.lock:
            return find(self.tables.workers.values(), query, query_tables.WORKERS)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        with self.tables.lock:
            worker = self.tables.workers.get(storable_text(worker_id))
            return worker and _copy(worker)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        stats, worker_id = rules.statistics_of(heartbeat_stats), storable_text(worker_id)
        stored = stats and storable(stats, "heartbeat_stats")
        with self.tables.lock:
            worker = self.tables.workers.setdefault(worker_id, Worker(worker_id=worker_id))
            worker.last_heartbeat_time = time.time()
            if stored is not None:
                worker.heartbeat_stats = stored
            return _copy(worker)


def _check_status(row: RolloutRow, attempt: AttemptRow, wanted: AttemptStatus) -> None:
    superseded = attempt is not row.newest
    if superseded and wanted in rules.OPEN:
        raise ConflictError(f"attempt {attempt.attempt_id} has been superseded: it may end, but not run again")
    if not superseded and not rules.attempt_may_change(attempt.status, row.status):
        raise ConflictError(f"attempt {attempt.attempt_id} has ended as {attempt.status}")


def _copy(row: M) -> M:
    """A copy for the caller, who may change it."""
    return row.model_copy(deep=True)


class Sweeper:
    """Calls `sweep` every so many seconds until it is closed, in a thread of its own, so that no event loop needs to be
    there for it. It ends with the process, too."""

    def __init__(self, sweep: Callable[[], object], period_seconds: float) -> None:
        self._sweep = sweep
        self._period_seconds = period_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relight-sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; returns when it has."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_seconds):
            self._sweep()
