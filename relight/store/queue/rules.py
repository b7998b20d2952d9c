"""Rules of rollouts and their attempts, as pure functions.

In Postgres the same rules are SQL functions (`schema/13_external_rollouts.sql`); a state machine test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from relight.emitter.reading import get_reward_value
from relight.errors import InvalidRequestError, NotFoundError
from relight.types.checking import shown
from relight.types.rollout import Attempt, AttemptStatus, FailureClass, RolloutConfig, RolloutStatus, may_retry
from relight.types.store import Unset, WorkerStatus
from relight.types.tracer import Span

ENDED: Final = frozenset({RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED})
QUEUED: Final = frozenset({RolloutStatus.QUEUING, RolloutStatus.REQUEUING})
UNDER_WAY: Final = frozenset({RolloutStatus.PREPARING, RolloutStatus.RUNNING})
OPEN: Final = frozenset({AttemptStatus.PREPARING, AttemptStatus.RUNNING})
NO_TASK_QUEUE: Final = (
    "dispatch: by 'workflow' needs `agent`, which runners serve under that name, or `task_queue`, theirs"
)
_FAILURES: Final = {
    AttemptStatus.FAILED: FailureClass.AGENT_ERROR,
    AttemptStatus.TIMEOUT: FailureClass.TIMEOUT,
    AttemptStatus.UNRESPONSIVE: FailureClass.UNRESPONSIVE,
}


def statistics_of(given: Any) -> dict[str, Any] | None:
    """The statistics of a heartbeat; None: none were given.

    Raises:
        TypeError: the statistics are None.
        InvalidRequestError: they are no object.
    """
    if given is None:
        raise TypeError("heartbeat_stats: can't be None; leave them out to keep the present ones")
    if not isinstance(given, dict | Unset):
        raise InvalidRequestError(f"heartbeat_stats: must be an object{shown(given)}")
    return None if isinstance(given, Unset) else given


def failure_of(status: AttemptStatus) -> FailureClass | None:
    """Why an attempt with this status, which its runner or the sweeper gave it, brought no reward."""
    return _FAILURES.get(status)


def unknown_resources(resources_id: str) -> NotFoundError:
    """The error for unknown resources of a rollout that a workflow dispatches, which could not be added in time."""
    return NotFoundError(f"resources_id: there are no resources {resources_id}; add them first, a workflow needs them")


def status_after(config: RolloutConfig, failure: FailureClass | None, number: int) -> RolloutStatus:
    """The status of a rollout after its try with this number has ended with this failure (None: success)."""
    if failure is None:
        return RolloutStatus.SUCCEEDED
    if failure is FailureClass.INFRASTRUCTURE or may_retry(config, failure, number):
        return RolloutStatus.REQUEUING
    return failure.rollout_status


def may_become(old: RolloutStatus, new: RolloutStatus) -> bool:
    """Whether a rollout may be given this status by hand."""
    return old not in ENDED or new in (old, RolloutStatus.REQUEUING)


def attempt_may_change(status: AttemptStatus, rollout: RolloutStatus) -> bool:
    """Whether the newest attempt may get another status; an unresponsive one while its rollout waits for a next try."""
    return status in OPEN or (status is AttemptStatus.UNRESPONSIVE and rollout not in ENDED)


def overdue(config: RolloutConfig, attempt: Attempt, now: float) -> AttemptStatus | None:
    """The status of an open attempt whose deadline has passed; None if none has."""
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
