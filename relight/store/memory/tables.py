"""The tables of the in-memory stores, and the rules that change them, for both protocols. Nothing here locks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from relight.errors import ConflictError, NotFoundError
from relight.store.attempts.attempt_tokens import attempt_token, new_attempt_id, new_key, token_hash
from relight.store.memory.rows import AttemptRow, MemoryEngine, MemoryRun, RolloutRow
from relight.store.memory.waiters import Waiters
from relight.store.queue import rules
from relight.store.spans.rows import check_sequence_id
from relight.store.storable import storable, storable_text, storable_time
from relight.types.resources import NamedResources
from relight.types.rollout import AttemptStatus, FailureClass, RolloutStatus, backoff_seconds
from relight.types.store import ResourcesUpdate, Worker, WorkerStatus
from relight.types.tracer import Span, as_plain

OWN_PROCESS_AFTER_DEATHS = 2
"""Deaths after which a rollout's attempts run in a process of their own."""
QUARANTINE_AFTER_DEATHS = 5
ENDED_RUN = ("finished", "failed", "cancelled")


class KeptRequest(NamedTuple):
    """A request with an idempotency key, and what it made."""

    request_hash: str
    made: Sequence[tuple[str, str]]
    """Rollout ids and, of claims, attempt ids."""


class Tables:
    """All rows. The lock is held briefly and never while a call waits."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.waiters = Waiters()
        self.key = new_key()
        """The key from which the tokens of attempts are derived."""
        self.runs: dict[str, MemoryRun] = {}
        self.engines: dict[str, MemoryEngine] = {}
        self.rollouts: dict[str, RolloutRow] = {}
        self.attempts: dict[str, AttemptRow] = {}
        self.resources: dict[str, ResourcesUpdate] = {}
        """The newest version of each."""
        self.versions: dict[tuple[str, int], ResourcesUpdate] = {}
        self.newest_resources: str | None = None
        self.workers: dict[str, Worker] = {}
        self.keys: dict[tuple[str, str], KeptRequest] = {}
        """Requests with an idempotency key, by operation and key."""
        self._queue_positions = itertools.count(1)
        self._fences = itertools.count(1)

    def row(self, rollout_id: str) -> RolloutRow:
        """A rollout by its id."""
        rollout_id = storable_text(rollout_id)
        row = self.rollouts.get(rollout_id)
        if row is None:
            raise NotFoundError(f"there is no rollout {rollout_id}")
        return row

    def queued_row(self, rollout_id: str) -> RolloutRow:
        """One that may be changed without a fence."""
        row = self.row(rollout_id)
        if not row.by_queue:
            raise ConflictError(f"rollout {rollout_id} is driven by a workflow: only spans may be added from outside")
        return row

    def run_of(self, row: RolloutRow) -> MemoryRun:
        """The run of a rollout; what a run is by default where it has none."""
        return self.runs[row.run] if row.run else MemoryRun()

    def has_engines(self, row: RolloutRow) -> bool:
        """Whether engines of its run serve a rollout's model calls."""
        return row.run is not None and self.runs[row.run].has_engines

    def require_unfinished(self, name: str) -> None:
        """Check that a run takes rollouts from outside.

        Raises:
            NotFoundError: there is none of that name.
            ConflictError: it has ended.
        """
        if name not in self.runs:
            raise NotFoundError(f"run: there is no run {name}; `relight runs` lists them")
        ended = self.runs[name].status
        if ended in ENDED_RUN:
            raise ConflictError(f"run: {name} is {ended} and takes no more rollouts; name an unfinished run, or none")

    def waits(self, row: RolloutRow) -> str | None:
        """Why no attempt of a rollout begins now; None: one may."""
        if row.run is None:
            return None
        run = self.runs[row.run]
        engines = [engine for engine in self.engines.values() if engine.info.run == row.run]
        answering = {engine.info.policy for engine in engines if engine.state in ("ready", "loading")}
        ready = bool(engines) and all(engine.info.policy in answering for engine in engines)
        needed = run.has_engines if row.outside else bool(engines)
        if run.status != "running":
            return f"the run is {run.status}"
        if run.paused:
            return "the run is paused"
        return "no engine is ready" if needed and not ready else None

    def queue(self, limit: int) -> list[RolloutRow]:
        """The oldest rollouts of the queue that can be claimed now."""
        now = time.time()
        waiting = [row for row in self.rollouts.values() if row.queue_position is not None and row.due <= now]
        ready = [row for row in waiting if self.waits(row) is None]
        return sorted(ready, key=lambda row: row.queue_position or 0)[: max(limit, 0)]

    def set_status(self, row: RolloutRow, status: RolloutStatus) -> None:
        """Set a rollout's status; it is in the queue exactly while the status says so."""
        row.status = status
        if status not in rules.QUEUED or not row.by_queue:
            row.queue_position = None
        elif row.queue_position is None:
            row.queue_position = next(self._queue_positions)
        if status not in rules.ENDED:
            row.end_time = None
        else:
            row.end_time = row.end_time or time.time()
            self.waiters.wake(row.rollout_id)

    def set_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Make a snapshot of that id, or add a version."""
        now, old = time.time(), self.resources.get(resources_id)
        snapshot = ResourcesUpdate(
            resources_id=resources_id,
            create_time=old.create_time if old else now,
            update_time=now,
            version=old.version + 1 if old else 1,
            resources=resources,
        ).model_copy(deep=True)
        self.resources[resources_id] = self.versions[resources_id, snapshot.version] = snapshot
        self.newest_resources = resources_id
        return snapshot

    def pin(self, row: RolloutRow, resources_id: str | None) -> None:
        """Give a rollout these resources in their newest version, unless it is pinned to one of theirs."""
        if row.resources_id != resources_id or row.resources_version is None:
            newest = self.resources.get(resources_id) if resources_id is not None else None
            row.resources_id, row.resources_version = resources_id, newest and newest.version

    def resources_of(self, row: RolloutRow) -> NamedResources:
        """The resources that a rollout is pinned to."""
        found = self.versions.get((row.resources_id or "", row.resources_version or 0))
        return found.resources if found else {}

    def begin_attempt(
        self,
        row: RolloutRow,
        worker_id: str | None,
        *,
        try_number: int | None = None,
        open_key: str | None = None,
        dequeued: bool = False,
    ) -> AttemptRow:
        """The next attempt. An older one that is still open loses its fence."""
        self._end(row.newest, FailureClass.INFRASTRUCTURE, "a newer attempt has begun")
        newest = None if row.attempts or row.run else self.newest_resources
        self.pin(row, newest if row.resources_id is None else row.resources_id)
        attempt_id, number = new_attempt_id(), len(row.attempts) + 1
        attempt = AttemptRow(
            attempt_id=attempt_id,
            rollout_id=row.rollout_id,
            sequence_id=number,
            try_number=try_number or number,
            open_key=open_key or f"queue/{attempt_id}",
            fence=next(self._fences),
            token_hash=token_hash(attempt_token(self.key, attempt_id)),
            worker_id=worker_id,
        )
        self.attempts[attempt_id] = attempt
        row.attempts.append(attempt)
        row.due = 0.0
        row.reward = row.failure_class = row.failure = None
        self.set_status(row, RolloutStatus.PREPARING)
        self.follow_worker(attempt, dequeued=dequeued)
        return attempt

    def cancel(self, row: RolloutRow, reason: str) -> None:
        """End a rollout, and its open attempt."""
        self.set_status(row, RolloutStatus.CANCELLED)
        row.reward, row.failure_class, row.failure = None, FailureClass.CANCELLED, reason
        self.end_open_attempt(row, FailureClass.CANCELLED, reason)

    def end_open_attempt(self, row: RolloutRow, failure: FailureClass, message: str = "") -> None:
        """End the open attempt for this reason."""
        if row.newest and self._end(row.newest, failure, message):
            self.follow_worker(row.newest)

    def _end(self, attempt: AttemptRow | None, failure: FailureClass, message: str) -> bool:
        """End an attempt; False if it has ended already."""
        if attempt is None or attempt.ended:
            return False
        attempt.end()
        attempt.status, attempt.failure_class, attempt.message = AttemptStatus.FAILED, failure, message
        return True

    def count_death(self, row: RolloutRow) -> bool:
        """Count a death of an attempt's process; True if its rollout is given up."""
        row.deaths += 1
        if row.deaths < QUARANTINE_AFTER_DEATHS or row.status in rules.ENDED or row.final_attempt is not None:
            return False
        self.set_status(row, RolloutStatus.FAILED)
        row.failure_class = FailureClass.INFRASTRUCTURE
        row.failure = f"quarantined: its process died {row.deaths} times"
        return True

    def set_attempt_status(self, row: RolloutRow, attempt: AttemptRow, status: AttemptStatus) -> None:
        """An attempt gets a status, which says why it failed; its reward is in its spans."""
        mine = [span for (attempt_id, _), span in row.spans.items() if attempt_id == attempt.attempt_id]
        attempt.status, attempt.failure_class = status, rules.failure_of(status)
        attempt.reward = rules.reward_of(mine) if status is AttemptStatus.SUCCEEDED else None
        if status in rules.OPEN:
            attempt.end_time = None
        else:
            attempt.end()
        self.follow(row, attempt)

    def follow(self, row: RolloutRow, attempt: AttemptRow) -> None:
        """Rollout and worker follow what became of an attempt; not a rollout that has ended, or whose batch has."""
        if attempt is row.newest and row.status not in rules.ENDED and row.final_attempt is None:
            self._follow(row, attempt)
        self.follow_worker(attempt)

    def _follow(self, row: RolloutRow, attempt: AttemptRow) -> None:
        status = RolloutStatus(attempt.status) if not attempt.ended else None
        status = status or rules.status_after(row.config, attempt.failure_class, attempt.try_number)
        again = status is RolloutStatus.REQUEUING
        row.reward = attempt.reward
        row.failure_class = None if again else attempt.failure_class
        row.failure = None if again else attempt.message or None
        row.due = time.time() + backoff_seconds(row.config, attempt.try_number) if again else 0.0
        self.set_status(row, status)

    def alive(self, row: RolloutRow, attempt: AttemptRow) -> None:
        """Record a sign of life. An unresponsive attempt recovers while its rollout waits; `timeout` stays."""
        attempt.last_heartbeat_time = time.time()
        if attempt is not row.newest:
            return
        if attempt.status is AttemptStatus.UNRESPONSIVE and row.status not in rules.ENDED:
            self.set_attempt_status(row, attempt, AttemptStatus.RUNNING)
        elif attempt.status is AttemptStatus.PREPARING:
            attempt.status = AttemptStatus.RUNNING
        if attempt.status in rules.OPEN and row.status is RolloutStatus.PREPARING:
            self.set_status(row, RolloutStatus.RUNNING)

    def follow_worker(self, attempt: AttemptRow, *, dequeued: bool = False) -> None:
        """A worker does what its attempt does. The end of one frees it only while it is at that one."""
        if attempt.worker_id is None or not self.rollouts[attempt.rollout_id].by_queue:
            return
        status = rules.worker_status(attempt.status)
        worker = self.workers.get(attempt.worker_id)
        elsewhere = worker is not None and worker.current_attempt_id not in (None, attempt.attempt_id)
        if status is WorkerStatus.BUSY or not elsewhere:
            self.set_worker(attempt.worker_id, status, attempt, dequeued=dequeued)

    def set_worker(
        self, worker_id: str, status: WorkerStatus, attempt: AttemptRow | None = None, *, dequeued: bool = False
    ) -> None:
        """Give a worker a status, and an attempt while it is busy."""
        now = time.time()
        known = worker_id in self.workers
        worker = self.workers.setdefault(worker_id, Worker(worker_id=worker_id))
        busy = attempt if status is WorkerStatus.BUSY else None
        if dequeued:
            worker.last_dequeue_time = now
        if busy and (worker.status, worker.current_attempt_id) != (WorkerStatus.BUSY, busy.attempt_id):
            worker.last_busy_time = now
        if busy is None and (worker.status is not status or not known):
            worker.last_idle_time = now
        worker.status = status
        worker.current_rollout_id = busy and busy.rollout_id
        worker.current_attempt_id = busy and busy.attempt_id

    def owner(self, span: Span) -> tuple[RolloutRow, AttemptRow]:
        """The rollout and the attempt of a span."""
        row, attempt = self.row(span.rollout_id), self.attempts.get(span.attempt_id)
        if attempt is None or attempt.rollout_id != span.rollout_id:
            raise NotFoundError(f"rollout {span.rollout_id} has no attempt {span.attempt_id}")
        return row, attempt

    def add_span(self, span: Span) -> Span | None:
        """Store a span; None if it was stored before. A number below 0 asks for the next one."""
        row, _ = self.owner(span)
        kept = storable_span(span)
        key = (kept.attempt_id, kept.span_id)
        if key in row.spans:
            return None
        row.spans[key] = kept
        kept.sequence_id = row.next_sequence if span.sequence_id < 0 else span.sequence_id
        row.next_sequence = max(row.next_sequence, kept.sequence_id + 1)
        return kept

    def sweep(self) -> list[AttemptRow]:
        """Check deadlines; returns the overdue attempts."""
        found: list[AttemptRow] = []
        for row in self.rollouts.values():
            attempt = row.newest
            if attempt is None or not row.by_queue or attempt.status not in rules.OPEN:
                continue
            status = rules.overdue(row.config, attempt.shown(), time.time())
            if status is not None and row.status in rules.UNDER_WAY:
                self.set_attempt_status(row, attempt, status)
                found.append(attempt)
        return found

    def counts(self) -> dict[str, int]:
        """How many rows there are."""
        return {
            "total_rollouts": len(self.rollouts),
            "total_attempts": len(self.attempts),
            "total_spans": sum(len(row.spans) for row in self.rollouts.values()),
            "total_resources": len(self.resources),
            "total_workers": len(self.workers),
        }


def storable_span(span: Span) -> Span:
    """A span as Postgres would return it.

    Raises:
        InvalidRequestError: its number is too large, or a value can't be stored.
    """
    check_sequence_id(span)
    times = {"start_time": storable_time(span.start_time), "end_time": storable_time(span.end_time)}
    kept = {name: storable(as_plain(value), f"span {span.span_id}: {name}") for name, value in span}
    return Span.model_validate(kept | times)


class OverTables(Protocol):
    """A store that reads and writes tables."""

    tables: Tables


S = TypeVar("S", bound=OverTables)
P = ParamSpec("P")
R = TypeVar("R")


def locked(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], CoroutineType[Any, Any, R]]:
    """A method that holds the lock of its tables. It awaits nothing but methods of its own kind, so it never waits."""

    @wraps(method)
    async def call(self: S, *args: P.args, **options: P.kwargs) -> R:
        with self.tables.lock:
            return await method(self, *args, **options)

    return call
