"""The rollout store in memory: the same rules as on Postgres, for tests and for trying an algorithm out.

One lock, held for moments and never across an await, so any number of threads and event loops may use one store.
What goes in and comes out is copied. Nothing survives the process, nothing is evicted, no workflow is started, and
deadlines are judged when `sweep` is called, or after `start` by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Self

from relight.errors import ConflictError, InvalidRequestError, NotFoundError
from relight.store import lightning_memory_pages as pages
from relight.store import lightning_rules as rules
from relight.store.lightning_memory_catalogue import MemoryCatalogue
from relight.store.lightning_memory_pages import between, contains, equals, matching, one_of
from relight.store.lightning_memory_rows import RolloutRow
from relight.store.lightning_memory_sweeper import Sweeper
from relight.store.lightning_memory_waits import Waiters
from relight.store.lightning_rows import new_id
from relight.store.otel_spans import span_of
from relight.store.storable import storable
from relight.store.tokens import new_attempt_id
from relight.types.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    FailureClass,
    Mode,
    Rollout,
    RolloutConfig,
    RolloutStatus,
)
from relight.types.store import (
    UNSET,
    Dispatch,
    EnqueueRolloutRequest,
    FilterLogic,
    PaginatedResult,
    SortOrder,
    Span,
    Unset,
    WorkerStatus,
)

NUMBER_WANTED: Final = -1
PERIOD_SECONDS = 0.5


class InMemoryLightningStore(MemoryCatalogue):
    """Implements `LightningStore` in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters = Waiters()
        self._started = time.monotonic()
        self._sweeper: Sweeper | None = None

    def start(self, period_seconds: float = PERIOD_SECONDS) -> Self:
        """Find by itself, from now on, what is overdue."""
        self._sweeper = self._sweeper or Sweeper(self._sweep, period_seconds)
        return self

    async def aclose(self) -> None:
        """Stop looking for what is overdue."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper:
            sweeper.close()

    @property
    def capabilities(self) -> dict[str, bool]:
        """What it can."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    def otlp_traces_endpoint(self) -> str:
        """There is none."""
        raise NotImplementedError("the store in memory has no OTLP endpoint; start `relight store` for one")

    async def statistics(self) -> dict[str, Any]:
        """How much there is."""
        with self._lock:
            counts = self._tables.counts()
        return {"name": type(self).__name__, **counts, "uptime": time.monotonic() - self._started}

    async def sweep(self) -> list[Attempt]:
        """Judge what is overdue; the attempts that were."""
        return self._sweep()

    def _sweep(self) -> list[Attempt]:
        with self._lock:
            found = [attempt.model_copy(deep=True) for attempt in self._tables.sweep()]
            self._wake(*(attempt.rollout_id for attempt in found))
        return found

    def plan(self, rollout_id: str, *, run: str, step: int, mode: Mode = "train", input: Any = None) -> Rollout:
        """Put a rollout in as a run plans it: a workflow drives it, no queue."""
        with self._lock:
            request = EnqueueRolloutRequest(input=input, mode=mode, dispatch=Dispatch(by="workflow", agent=run))
            row = self._new(request, rollout_id)
            row.rollout.run, row.rollout.step = run, step
            return row.rollout.model_copy(deep=True)

    # Into the queue and out of it

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
        """A rollout with attempt 1 at once."""
        request = _request(input, mode, resources_id, config, metadata, None)
        with self._lock:
            if made := self._made("start", idempotency_key):
                return made[0]
            row = self._new(request)
            claimed = self._claim(row, worker_id)
            self._remember("start", idempotency_key, [claimed])
            return claimed

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
        """A rollout at the end of the queue."""
        request = _request(input, mode, resources_id, config, metadata, dispatch)
        return (await self.enqueue_many_rollouts([request], idempotency_key=idempotency_key))[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Several, in order, or none."""
        with self._lock:
            known = idempotency_key and self._tables.keys.get(("enqueue", idempotency_key))
            if known:
                rows = [self._tables.rollouts[made] for made, _ in known if made in self._tables.rollouts]
                return [row.shown().model_copy(deep=True) for row in rows]
            for request in rollouts:
                self._check(request)
            made = [self._new(request).rollout.model_copy(deep=True) for request in rollouts]
            if idempotency_key is not None:
                self._tables.keys["enqueue", idempotency_key] = [(rollout.rollout_id, "") for rollout in made]
            return made

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout in the queue."""
        claimed = await self.dequeue_many_rollouts(1, worker_id, idempotency_key=idempotency_key)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit`."""
        if limit <= 0:
            return []
        with self._lock:
            if made := self._made("dequeue", idempotency_key):
                return made
            claimed = [self._claim(row, worker_id, dequeued=True) for row in self._tables.queue(limit)]
            if claimed:
                self._remember("dequeue", idempotency_key, claimed)
            elif worker_id is not None:
                self._tables.set_worker(worker_id, WorkerStatus.IDLE, dequeued=True)
            return claimed

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """One more attempt by hand."""
        with self._lock:
            row = self._tables.queued_row(rollout_id)
            if row.rollout.status is RolloutStatus.CANCELLED:
                raise ConflictError(f"rollout {rollout_id} is cancelled")
            return self._claim(row, worker_id)

    def _check(self, request: EnqueueRolloutRequest) -> None:
        dispatch = request.dispatch
        if dispatch and dispatch.by == "workflow" and not (dispatch.agent or dispatch.task_queue):
            raise InvalidRequestError(
                "dispatch: by 'workflow' needs `agent`, which runners serve under that name, or `task_queue`, theirs"
            )
        if request.resources_id is not None:
            self._check_resources(request.resources_id)

    def _check_resources(self, resources_id: str) -> None:
        if resources_id not in self._tables.resources:
            raise NotFoundError(f"resources_id: there are no resources {resources_id}")

    def _new(self, request: EnqueueRolloutRequest, rollout_id: str | None = None) -> RolloutRow:
        self._check(request)
        rollout = Rollout(
            rollout_id=rollout_id or new_id("ro"),
            input=storable(request.input),
            start_time=time.time(),
            mode=request.mode,
            resources_id=request.resources_id or self._tables.newest_resources,
            config=(request.config or RolloutConfig()).model_copy(deep=True),
            metadata=storable(request.metadata or {}),
        )
        by_queue = request.dispatch is None or request.dispatch.by == "queue"
        row = self._tables.rollouts[rollout.rollout_id] = RolloutRow(rollout, by_queue)
        self._tables.set_status(row, RolloutStatus.QUEUING)
        return row

    def _claim(self, row: RolloutRow, worker_id: str | None, *, dequeued: bool = False) -> AttemptedRollout:
        attempt = self._tables.begin_attempt(row, new_attempt_id(), worker_id, dequeued)
        return row.handed_out(attempt)

    def _made(self, operation: str, key: str | None) -> list[AttemptedRollout]:
        made = self._tables.keys.get((operation, key), []) if key is not None else []
        rows = [(self._tables.rollouts.get(rollout_id), attempt_id) for rollout_id, attempt_id in made]
        return [row.handed_out(row.attempt(attempt_id)) for row, attempt_id in rows if row]

    def _remember(self, operation: str, key: str | None, made: Sequence[AttemptedRollout]) -> None:
        if key is not None:
            self._tables.keys[operation, key] = [(row.rollout_id, row.attempt.attempt_id) for row in made]

    # Rollouts and attempts

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
        """Change fields; a status that ends it wakes those who wait."""
        with self._lock:
            row = self._tables.queued_row(rollout_id)
            wanted = row.rollout.status if isinstance(status, Unset) else RolloutStatus(status)
            if not rules.may_become(row.rollout.status, wanted):
                raise ConflictError(f"rollout {rollout_id} is {row.rollout.status} and can not become {wanted}")
            if isinstance(resources_id, str):
                self._check_resources(resources_id)
            metadata = {} if metadata is None else metadata
            given = {"input": input, "mode": mode, "resources_id": resources_id, "metadata": metadata}
            for name, value in given.items():
                if not isinstance(value, Unset):
                    setattr(row.rollout, name, storable(value))
            if not isinstance(config, Unset):
                row.rollout.config = config.model_copy(deep=True)
            self._set_status_by_hand(row, wanted)
            if not isinstance(status, Unset):
                row.due = 0.0
            self._wake(rollout_id)
            return row.shown().model_copy(deep=True)

    def _set_status_by_hand(self, row: RolloutRow, status: RolloutStatus) -> None:
        rollout = row.rollout
        self._tables.set_status(row, status)
        if status not in rules.ENDED:
            rollout.reward = None
        if status is RolloutStatus.CANCELLED:
            rollout.failure_class = FailureClass.CANCELLED
            self._tables.end_open_attempt(row, FailureClass.CANCELLED)
        elif status is RolloutStatus.FAILED:
            rollout.failure_class = rollout.failure_class or FailureClass.AGENT_ERROR
        else:
            rollout.failure_class = None

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        """Change an attempt (or `latest`)."""
        with self._lock:
            row = self._tables.queued_row(rollout_id)
            attempt = row.attempt(attempt_id)
            wanted = attempt.status if isinstance(status, Unset) else AttemptStatus(status)
            if wanted is not attempt.status:
                _check_status(row, attempt)
            metadata = {} if metadata is None else metadata
            given = {"worker_id": worker_id, "last_heartbeat_time": last_heartbeat_time, "metadata": metadata}
            for name, value in given.items():
                if not isinstance(value, Unset):
                    setattr(attempt, name, storable(value))
            if wanted is not attempt.status:
                self._tables.settle(row, attempt, wanted)
                self._wake(rollout_id)
            self._tables.follow_worker(attempt)
            return attempt.model_copy(deep=True)

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """End a rollout, and its open attempt."""
        with self._lock:
            row = self._tables.row(rollout_id)
            if row.rollout.run is not None:
                raise ConflictError(f"rollout {rollout_id} belongs to run {row.rollout.run}, which decides about it")
            if row.rollout.status in rules.ENDED - {RolloutStatus.CANCELLED}:
                raise ConflictError(f"rollout {rollout_id} is {row.rollout.status} already")
            if row.rollout.status is not RolloutStatus.CANCELLED:
                row.rollout.reward = None
                self._set_status_by_hand(row, RolloutStatus.CANCELLED)
                self._wake(rollout_id)
            return row.shown().model_copy(deep=True)

    async def delete_rollout(self, rollout_id: str) -> None:
        """Remove an ended rollout of no run."""
        with self._lock:
            row = self._tables.row(rollout_id)
            if row.rollout.run is not None:
                raise ConflictError(f"rollout {rollout_id} belongs to a run")
            if row.rollout.status not in rules.ENDED:
                raise ConflictError(f"rollout {rollout_id} is {row.rollout.status}; cancel it first")
            del self._tables.rollouts[rollout_id]
            for worker in self._tables.workers.values():
                if worker.current_rollout_id == rollout_id:
                    worker.current_rollout_id = worker.current_attempt_id = None

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """None where it is unknown."""
        with self._lock:
            row = self._tables.rollouts.get(rollout_id)
            return row.shown().model_copy(deep=True) if row else None

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """None where there is none."""
        with self._lock:
            row = self._tables.rollouts.get(rollout_id)
            return row.newest.model_copy(deep=True) if row and row.newest else None

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
        """Rollouts, each with its newest attempt where it has one."""
        tests = one_of("status", status_in) + one_of("rollout_id", rollout_id_in)
        tests += contains("rollout_id", rollout_id_contains)
        must = equals("mode", mode) + equals("run", run) + equals("step", step)
        must += equals("failure_class", failure_class) + between("reward", reward_min, reward_max)
        with self._lock:
            found = matching([row.shown() for row in self._tables.rollouts.values()], tests, filter_logic, must)
            return pages.page(found, pages.ROLLOUT_SORTS, sort_by, sort_order, limit, offset)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Attempts of a rollout."""
        with self._lock:
            row = self._tables.rollouts.get(rollout_id)
            return pages.page(row.attempts if row else [], pages.ATTEMPT_SORTS, sort_by, sort_order, limit, offset)

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Those that have ended; unknown ones are not waited for."""
        await self._waiters.wait(rollout_ids, lambda: self._open(rollout_ids), timeout)
        with self._lock:
            rows = [self._tables.rollouts.get(rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
            found = [row.shown() for row in rows if row and row.rollout.status in rules.ENDED]
            return [rollout.model_copy(deep=True) for rollout in found]

    def _open(self, rollout_ids: Sequence[str]) -> bool:
        with self._lock:
            rows = [self._tables.rollouts.get(rollout_id) for rollout_id in rollout_ids]
            return any(row and row.rollout.status not in rules.ENDED for row in rows)

    def _wake(self, *rollout_ids: str) -> None:
        for rollout_id in rollout_ids:
            if self._tables.rollouts[rollout_id].rollout.status in rules.ENDED:
                self._waiters.wake(rollout_id)

    # Spans

    async def add_span(self, span: Span) -> Span | None:
        """Keep a span; None where it is there already."""
        with self._lock:
            return self._tables.add_span(span)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Keep spans; those that were new. One of nobody among them: none is kept."""
        with self._lock:
            for span in spans:
                self._tables.owner(span)
            kept = [self._tables.add_span(span) for span in spans]
        return [span for span in kept if span]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Keep an OpenTelemetry `ReadableSpan`."""
        number = NUMBER_WANTED if sequence_id is None else sequence_id
        return await self.add_span(span_of(rollout_id, attempt_id, number, readable_span))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Next number of the rollout."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """One for each pair, in order."""
        with self._lock:
            rows = [self._tables.row(rollout_id) for rollout_id, _ in rollout_attempt_ids]
            for row, (_, attempt_id) in zip(rows, rollout_attempt_ids, strict=True):
                row.attempt(attempt_id)
            numbers: list[int] = []
            for row in rows:
                numbers.append(row.next_sequence)
                row.next_sequence += 1
            return numbers

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
        """Spans of a rollout, of one attempt, or of the newest (`latest`)."""
        tests = equals("trace_id", trace_id) + contains("trace_id", trace_id_contains)
        tests += equals("span_id", span_id) + contains("span_id", span_id_contains)
        tests += equals("parent_id", parent_id) + contains("parent_id", parent_id_contains)
        tests += equals("name", name) + contains("name", name_contains)
        with self._lock:
            row = self._tables.rollouts.get(rollout_id)
            newest = row and row.newest
            if attempt_id == "latest":
                attempt_id = newest.attempt_id if newest else attempt_id
            spans = sorted(row.spans.values() if row else (), key=_in_time)
            found = matching(spans, tests, filter_logic, equals("attempt_id", attempt_id))
            return pages.page(found, pages.SPAN_SORTS, sort_by, sort_order, limit, offset)


def _in_time(span: Span) -> tuple[int, bool, float, str]:
    """Where a span stands among those of its rollout."""
    return span.sequence_id, span.start_time is None, span.start_time or 0.0, span.span_id


def _check_status(row: RolloutRow, attempt: Attempt) -> None:
    if attempt is not row.newest:
        raise ConflictError(f"attempt {attempt.attempt_id} has been superseded")
    if not rules.attempt_may_change(attempt.status, row.rollout.status):
        raise ConflictError(f"attempt {attempt.attempt_id} has ended as {attempt.status}")


def _request(
    input: Any,
    mode: Mode | None,
    resources_id: str | None,
    config: RolloutConfig | None,
    metadata: dict[str, Any] | None,
    dispatch: Dispatch | None,
) -> EnqueueRolloutRequest:
    return EnqueueRolloutRequest(
        input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, dispatch=dispatch
    )
