"""What the in-memory rollout store holds, and the rules that change it. Nothing here locks or gives way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from relight.errors import ConflictError, NotFoundError
from relight.store import lightning_rules as rules
from relight.store.storable import storable, storable_time
from relight.types.rollout import Attempt, AttemptedRollout, AttemptStatus, FailureClass, Rollout, RolloutStatus
from relight.types.store import ResourcesUpdate, Span, Worker, WorkerStatus


@dataclass
class RolloutRow:
    """A rollout with all that belongs to it."""

    rollout: Rollout
    by_queue: bool
    place: int | None = None
    """In the queue; None: it stands in none."""
    due: float = 0.0
    """A retry that backs off is not handed out before."""
    next_sequence: int = 1
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    spans: dict[tuple[str, str], Span] = field(default_factory=dict[tuple[str, str], Span])

    @property
    def newest(self) -> Attempt | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None

    def shown(self, attempt: Attempt | None = None) -> Rollout:
        """The rollout with this attempt, or the newest, as users see it."""
        at_hand = attempt or self.newest
        if at_hand is None:
            return self.rollout
        return AttemptedRollout.model_construct(**dict(self.rollout), attempt=at_hand)

    def handed_out(self, attempt: Attempt) -> AttemptedRollout:
        """A copy of the rollout with an attempt."""
        return AttemptedRollout.model_construct(**dict(self.rollout), attempt=attempt).model_copy(deep=True)

    def attempt(self, attempt_id: str) -> Attempt:
        """An attempt by its id, or the `latest`."""
        for attempt in reversed(self.attempts):
            if attempt_id in (attempt.attempt_id, "latest"):
                return attempt
        raise NotFoundError(f"rollout {self.rollout.rollout_id} has no attempt {attempt_id}")


class Tables:
    """All rows."""

    def __init__(self) -> None:
        self.rollouts: dict[str, RolloutRow] = {}
        self.resources: dict[str, ResourcesUpdate] = {}
        self.newest_resources: str | None = None
        self.workers: dict[str, Worker] = {}
        self.keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
        """What a request with an idempotency key made, by operation: rollout ids and, of claims, attempt ids."""
        self._places = itertools.count(1)

    def row(self, rollout_id: str) -> RolloutRow:
        """A rollout by its id."""
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

    def queue(self, limit: int) -> list[RolloutRow]:
        """The oldest that may be handed out."""
        now = time.time()
        waiting = [row for row in self.rollouts.values() if row.place is not None and row.due <= now]
        return sorted(waiting, key=lambda row: row.place or 0)[: max(limit, 0)]

    def set_status(self, row: RolloutRow, status: RolloutStatus) -> None:
        """Give a rollout a status: it stands in the queue exactly while that says so."""
        row.rollout.status = status
        if status not in rules.QUEUED or not row.by_queue:
            row.place = None
        elif row.place is None:
            row.place = next(self._places)
        if status not in rules.ENDED:
            row.rollout.end_time = None
        elif row.rollout.end_time is None:
            row.rollout.end_time = time.time()

    def begin_attempt(self, row: RolloutRow, attempt_id: str, worker_id: str | None, dequeued: bool = False) -> Attempt:
        """The next attempt. An older one that is still open loses its fence."""
        _end(row.newest, FailureClass.INFRASTRUCTURE)
        attempt = Attempt(
            rollout_id=row.rollout.rollout_id,
            attempt_id=attempt_id,
            sequence_id=len(row.attempts) + 1,
            start_time=time.time(),
            worker_id=worker_id,
        )
        row.attempts.append(attempt)
        row.due = 0.0
        row.rollout.reward = row.rollout.failure_class = None
        self.set_status(row, RolloutStatus.PREPARING)
        self.follow_worker(attempt, dequeued=dequeued)
        return attempt

    def end_open_attempt(self, row: RolloutRow, failure: FailureClass) -> None:
        """What still runs ends for this reason."""
        attempt = row.newest
        if attempt is not None and _end(attempt, failure):
            self.follow_worker(attempt)

    def settle(self, row: RolloutRow, attempt: Attempt, status: AttemptStatus) -> None:
        """An attempt gets a status, and its rollout follows."""
        open_ = status in rules.OPEN
        attempt.status, attempt.failure_class = status, rules.failure_of(status)
        attempt.end_time = None if open_ else attempt.end_time or time.time()
        mine = [span for (attempt_id, _), span in row.spans.items() if attempt_id == attempt.attempt_id]
        attempt.reward = rules.reward_of(mine) if status is AttemptStatus.SUCCEEDED else None
        if row.rollout.status not in rules.ENDED:
            self._follow(row, attempt)
        self.follow_worker(attempt)

    def _follow(self, row: RolloutRow, attempt: Attempt) -> None:
        status = rules.status_after(row.rollout.config, attempt.status, attempt.sequence_id)
        row.rollout.reward = attempt.reward
        row.rollout.failure_class = attempt.failure_class if status is RolloutStatus.FAILED else None
        again = status is RolloutStatus.REQUEUING
        row.due = time.time() + rules.backoff_seconds(row.rollout.config, attempt.sequence_id) if again else 0.0
        self.set_status(row, status)

    def alive(self, row: RolloutRow, attempt: Attempt) -> None:
        """A sign of life. An unresponsive attempt recovers while its rollout waits for another; `timeout` stays."""
        attempt.last_heartbeat_time = time.time()
        if attempt is not row.newest:
            return
        if attempt.status is AttemptStatus.UNRESPONSIVE and row.rollout.status not in rules.ENDED:
            self.settle(row, attempt, AttemptStatus.RUNNING)
        elif attempt.status is AttemptStatus.PREPARING:
            attempt.status = AttemptStatus.RUNNING
        if attempt.status in rules.OPEN and row.rollout.status is RolloutStatus.PREPARING:
            self.set_status(row, RolloutStatus.RUNNING)

    def follow_worker(self, attempt: Attempt, *, dequeued: bool = False) -> None:
        """A worker does what its attempt does. The end of one frees it only while it is at that one."""
        if attempt.worker_id is None:
            return
        status = rules.worker_status(attempt.status)
        worker = self.workers.get(attempt.worker_id)
        elsewhere = worker is not None and worker.current_attempt_id not in (None, attempt.attempt_id)
        if status is WorkerStatus.BUSY or not elsewhere:
            self.set_worker(attempt.worker_id, status, attempt, dequeued=dequeued)

    def set_worker(
        self, worker_id: str, status: WorkerStatus, attempt: Attempt | None = None, *, dequeued: bool = False
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

    def owner(self, span: Span) -> tuple[RolloutRow, Attempt]:
        """Whose span it is."""
        row = self.row(span.rollout_id)
        for attempt in row.attempts:
            if attempt.attempt_id == span.attempt_id:
                return row, attempt
        raise NotFoundError(f"rollout {span.rollout_id} has no attempt {span.attempt_id}")

    def add_span(self, span: Span) -> Span | None:
        """Keep a span; None where it is there already. A number below 0 asks for the next one."""
        row, attempt = self.owner(span)
        key = (span.attempt_id, span.span_id)
        kept = None
        if key not in row.spans:
            kept = row.spans[key] = _storable(span)
            kept.sequence_id = row.next_sequence if span.sequence_id < 0 else span.sequence_id
            row.next_sequence = max(row.next_sequence, kept.sequence_id + 1)
        if row.by_queue:
            self.alive(row, attempt)
        return kept and kept.model_copy(deep=True)

    def sweep(self) -> list[Attempt]:
        """Judge what is overdue; those attempts."""
        found: list[Attempt] = []
        for row in self.rollouts.values():
            attempt = row.newest
            if attempt is None or not row.by_queue or attempt.status not in rules.OPEN:
                continue
            status = rules.overdue(row.rollout.config, attempt, time.time())
            if status is not None and row.rollout.status in rules.UNDER_WAY:
                self.settle(row, attempt, status)
                found.append(attempt)
        return found

    def counts(self) -> dict[str, int]:
        """How many rows there are."""
        rows: Iterable[RolloutRow] = self.rollouts.values()
        return {
            "total_rollouts": len(self.rollouts),
            "total_attempts": sum(len(row.attempts) for row in rows),
            "total_spans": sum(len(row.spans) for row in self.rollouts.values()),
            "total_resources": len(self.resources),
            "total_workers": len(self.workers),
        }


def _end(attempt: Attempt | None, failure: FailureClass) -> bool:
    """An attempt ends without having been asked; False where it has ended already."""
    if attempt is None or attempt.end_time is not None:
        return False
    attempt.status, attempt.failure_class, attempt.end_time = AttemptStatus.FAILED, failure, time.time()
    return True


def _storable(span: Span) -> Span:
    times = {"start_time": storable_time(span.start_time), "end_time": storable_time(span.end_time)}
    return Span.model_validate(storable(span.model_dump(exclude=set(times))) | times)
