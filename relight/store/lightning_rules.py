"""Rules of rollouts that a queue dispatches, as functions of values: what follows from a status, and when.

In Postgres the same rules are SQL functions (migration 0004); a state machine under tests drives both side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from relight.emitter.reading import get_reward_value
from relight.types.rollout import Attempt, AttemptStatus, FailureClass, RolloutConfig, RolloutStatus
from relight.types.store import Span, WorkerStatus

ENDED: Final = frozenset({RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED})
QUEUED: Final = frozenset({RolloutStatus.QUEUING, RolloutStatus.REQUEUING})
UNDER_WAY: Final = frozenset({RolloutStatus.PREPARING, RolloutStatus.RUNNING})
OPEN: Final = frozenset({AttemptStatus.PREPARING, AttemptStatus.RUNNING})
LONGEST_BACKOFF_SECONDS: Final = 60.0
_FAILURES: Final = {
    AttemptStatus.FAILED: FailureClass.AGENT_ERROR,
    AttemptStatus.TIMEOUT: FailureClass.TIMEOUT,
    AttemptStatus.UNRESPONSIVE: FailureClass.UNRESPONSIVE,
}


def failure_of(status: AttemptStatus) -> FailureClass | None:
    """Why an attempt with this status, which its runner or the sweeper gave it, brought no reward."""
    return _FAILURES.get(status)


def may_retry(config: RolloutConfig, failure: FailureClass | None, sequence_id: int) -> bool:
    """Whether another attempt follows the one with this number."""
    return failure in config.retry_condition and sequence_id < config.max_attempts


def status_after(config: RolloutConfig, status: AttemptStatus, sequence_id: int) -> RolloutStatus:
    """Where a rollout stands when its newest attempt has this status."""
    if status in OPEN or status is AttemptStatus.SUCCEEDED:
        return RolloutStatus(status.value)
    if may_retry(config, failure_of(status), sequence_id):
        return RolloutStatus.REQUEUING
    return RolloutStatus.FAILED


def may_become(old: RolloutStatus, new: RolloutStatus) -> bool:
    """Whether a rollout may be given this status by hand."""
    return old not in ENDED or new in (old, RolloutStatus.REQUEUING)


def attempt_may_change(status: AttemptStatus, rollout: RolloutStatus) -> bool:
    """Whether the newest attempt may get another status; an unresponsive one while its rollout waits for a next try."""
    return status in OPEN or (status is AttemptStatus.UNRESPONSIVE and rollout not in ENDED)


def backoff_seconds(config: RolloutConfig, sequence_id: int) -> float:
    """Wait after the attempt with this number: doubles with every one."""
    return min(config.backoff_seconds * 2.0 ** min(sequence_id - 1, 20), LONGEST_BACKOFF_SECONDS)


def overdue(config: RolloutConfig, attempt: Attempt, now: float) -> AttemptStatus | None:
    """What an open attempt has become by now, if its deadlines say so."""
    heard = attempt.last_heartbeat_time or attempt.start_time
    if config.timeout_seconds is not None and now - attempt.start_time >= config.timeout_seconds:
        return AttemptStatus.TIMEOUT
    if config.unresponsive_seconds is not None and now - heard >= config.unresponsive_seconds:
        return AttemptStatus.UNRESPONSIVE
    return None


def worker_status(status: AttemptStatus) -> WorkerStatus:
    """What the worker of an attempt does."""
    if status in OPEN:
        return WorkerStatus.BUSY
    return WorkerStatus.IDLE if status in (AttemptStatus.SUCCEEDED, AttemptStatus.FAILED) else WorkerStatus.UNKNOWN


def reward_of(spans: Iterable[Span]) -> float | None:
    """The last reward that spans of an attempt hold, in the order of their numbers."""
    ordered: Sequence[Any] = sorted(spans, key=lambda span: span.sequence_id, reverse=True)
    return next((value for span in ordered if (value := get_reward_value(span)) is not None), None)
