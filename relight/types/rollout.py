"""Rollouts and attempts: statuses, failure classes, configuration.

Status names are Agent Lightning 0.3's; `failure_class` says more than a status can.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from relight.types.checking import Numbers

RolloutMode = Literal["train", "val", "test"]
LONGEST_BACKOFF_SECONDS = 60.0
LARGEST_BACKOFF_EXPONENT = 20
"""The back-off doubles at most so often: a float of any size overflows at try 1025."""
MOST_ATTEMPTS = 2000
"""Tries of one rollout: each adds up to 20 events to its workflow, which Temporal ends at 51,200."""


class RolloutStatus(StrEnum):
    """The status of a rollout."""

    QUEUING = "queuing"
    PREPARING = "preparing"
    RUNNING = "running"
    REQUEUING = "requeuing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptStatus(StrEnum):
    """The status of an attempt."""

    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNRESPONSIVE = "unresponsive"


class FailureClass(StrEnum):
    """Why an attempt has no reward."""

    AGENT_ERROR = "agent_error"
    """The agent raised an exception, exited, or caused its own death."""
    TIMEOUT = "timeout"
    """It ran longer than `timeout_seconds`."""
    UNRESPONSIVE = "unresponsive"
    """No span and no generation for `unresponsive_seconds`."""
    OUT_OF_MEMORY = "out_of_memory"
    """It exceeded its memory limit."""
    INFRASTRUCTURE = "infrastructure"
    """The runner, the gateway or the store failed."""
    ENGINE_ERROR = "engine_error"
    """A model call failed on the platform's side and no later try of it succeeded."""
    GRADER_ERROR = "grader_error"
    """The agent succeeded, its grader failed."""
    INVALID_REWARD = "invalid_reward"
    """The reward is not a finite number, or beyond 1e18, which overflows in 32 bits."""
    NO_REWARD = "no_reward"
    """The agent succeeded and gave no reward."""
    CANCELLED = "cancelled"
    """It was cancelled, by itself or with its run."""

    @property
    def attempt_status(self) -> AttemptStatus:
        """0.3's status of an attempt that failed like this."""
        if self is FailureClass.TIMEOUT:
            return AttemptStatus.TIMEOUT
        if self is FailureClass.UNRESPONSIVE:
            return AttemptStatus.UNRESPONSIVE
        return AttemptStatus.FAILED

    @property
    def rollout_status(self) -> RolloutStatus:
        """0.3's status of a rollout that failed like this."""
        return RolloutStatus.CANCELLED if self is FailureClass.CANCELLED else RolloutStatus.FAILED


PLATFORM_FAILURES = frozenset({FailureClass.INFRASTRUCTURE, FailureClass.ENGINE_ERROR, FailureClass.GRADER_ERROR})
"""Classes that the platform causes; only groups with these are filled up (rule 11)."""
AGENT_FAILURES = tuple(
    kind
    for kind in FailureClass
    if kind.attempt_status is AttemptStatus.FAILED
    and kind not in PLATFORM_FAILURES
    and kind is not FailureClass.CANCELLED
)
"""Classes that 0.3 calls `failed`: the agent's own failures except those of deadlines."""


class RolloutConfig(Numbers):
    """Retries and deadlines of one rollout."""

    model_config = ConfigDict(extra="forbid")

    timeout_seconds: float | None = Field(default=None, gt=0)
    """Wall-clock limit of one attempt; queue time, paused time and engine waits don't count."""
    unresponsive_seconds: float | None = Field(default=None, gt=0)
    """Longest time without a span or a generation."""
    memory_limit_bytes: int | None = Field(default=None, ge=16 * 1024 * 1024, lt=2**63)
    """Memory that each process of an attempt may allocate beyond its imports; the attempt then has its own process."""
    max_attempts: int = Field(default=1, ge=1, le=MOST_ATTEMPTS)
    """Tries by the agent, at most 2,000. Attempts that the platform failed don't count."""
    retry_condition: list[FailureClass] = Field(default_factory=list[FailureClass])
    """Which failures are tried again while `max_attempts` allows it."""
    backoff_seconds: float = Field(default=1.0, ge=0)
    """Wait before try 2; doubles with every try, up to 60 s."""

    @field_validator("retry_condition", mode="before")
    @classmethod
    def _spell_out(cls, conditions: Any) -> Any:
        """Expand 0.3's `failed` to its classes."""
        if not isinstance(conditions, list) or "failed" not in conditions:
            return cast("Any", conditions)
        others = [condition for condition in cast("list[Any]", conditions) if condition != "failed"]
        return [*others, *(kind for kind in AGENT_FAILURES if kind not in others)]


def may_retry(config: RolloutConfig, failure: FailureClass, number: int) -> bool:
    """Whether another try follows the one with this number, which failed like this."""
    return failure in config.retry_condition and number < config.max_attempts


def backoff_seconds(config: RolloutConfig, number: int) -> float:
    """The wait after the try with this number: doubles with every try. SQL's `backoff_v1` has the same rule."""
    first = min(config.backoff_seconds, LONGEST_BACKOFF_SECONDS)
    return min(first * 2.0 ** min(number - 1, LARGEST_BACKOFF_EXPONENT), LONGEST_BACKOFF_SECONDS)


class Attempt(BaseModel):
    """One try at a rollout."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """1 for the first attempt."""
    start_time: float
    """Unix seconds."""
    end_time: float | None = None
    status: AttemptStatus = AttemptStatus.PREPARING
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    failure_class: FailureClass | None = None
    error: dict[str, Any] | None = None
    reward: float | None = None
    spans_dropped: int = 0
    """Spans that were not kept: malformed, or beyond what an attempt may send."""


class Rollout(BaseModel):
    """One sample of a task."""

    rollout_id: str
    input: Any = None
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    """The version of these resources that all its attempts see."""
    status: RolloutStatus = RolloutStatus.QUEUING
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] = Field(default_factory=dict)
    run: str | None = None
    step: int | None = None
    failure_class: FailureClass | None = None
    reward: float | None = None


class AttemptedRollout(Rollout):
    """A rollout with one of its attempts."""

    attempt: Attempt

    @model_validator(mode="after")
    def _is_its_own(self) -> Self:
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(f"attempt: is one of rollout {self.attempt.rollout_id!r}, not of {self.rollout_id!r}")
        return self
