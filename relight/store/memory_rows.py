"""Rows of the in-memory store, and the rules that concern one of them alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from relight.types.resources import NamedResources
from relight.types.rollout import AttemptStatus, FailureClass, RolloutConfig, RolloutStatus
from relight.types.upstreams import Upstream
from relight.types.wire import AttemptOutcome, EngineInfo, GenerationRecord, UndeliveredCall

ENDED = frozenset({RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED})
EngineState = Literal["starting", "ready", "loading", "dead"]


@dataclass
class MemoryRun:
    """What the store knows of a run."""

    sampling: dict[str, Any] = field(default_factory=dict[str, Any])
    isolation: Literal["process", "shared"] = "process"
    engine_wait_seconds: float = 300.0
    grader: str | None = None
    upstreams: list[Upstream] = field(default_factory=list[Upstream])
    paused: bool = False
    status: str = "running"

    @property
    def set_sampling(self) -> dict[str, Any]:
        """Sampling parameters as engines know them: those that are set."""
        return {key: value for key, value in self.sampling.items() if value is not None and key != "agent_chooses"}


@dataclass
class MemoryRollout:
    """A rollout's row."""

    rollout_id: str
    run: str | None
    step: int | None
    input: Any
    mode: Literal["train", "val", "test"] | None
    resources: NamedResources
    config: RolloutConfig
    seed_base: str
    min_version: int | None
    max_version: int | None
    status: RolloutStatus = RolloutStatus.QUEUING
    failure_class: FailureClass | None = None
    failure: str | None = None
    reward: float | None = None
    deaths: int = 0
    counted: str | None = None
    spans: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    attempts: list[MemoryAttempt] = field(default_factory=list["MemoryAttempt"])

    @property
    def newest(self) -> MemoryAttempt | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None

    def status_after(self, try_number: int, failure_class: FailureClass | None) -> RolloutStatus:
        """Where it stands after an attempt ended so."""
        if self.status in ENDED or self.counted is not None:
            return self.status
        if failure_class is None:
            return RolloutStatus.SUCCEEDED
        if failure_class is FailureClass.INFRASTRUCTURE:
            return RolloutStatus.REQUEUING
        if failure_class in self.config.retry_condition and try_number < self.config.max_attempts:
            return RolloutStatus.REQUEUING
        return failure_class.rollout_status


@dataclass
class MemoryCall:
    """A committed model call."""

    record: GenerationRecord
    delivered: Literal["yes", "no", "unknown"]
    version_start: int | None
    version_end: int | None


@dataclass
class MemoryAttempt:
    """An attempt's row."""

    attempt_id: str
    rollout_id: str
    sequence_id: int
    try_number: int
    open_key: str
    fence: int
    token_hash: str
    worker_id: str
    status: AttemptStatus = AttemptStatus.PREPARING
    failure_class: FailureClass | None = None
    message: str = ""
    reward: float | None = None
    grader: str = "agent"
    output: str = ""
    ended: bool = False
    last_heartbeat: float = field(default_factory=time.time)
    calls: dict[int, MemoryCall] = field(default_factory=dict[int, MemoryCall])
    failures: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])

    @property
    def outcome(self) -> AttemptOutcome:
        """How it ended."""
        return AttemptOutcome(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            try_number=self.try_number,
            succeeded=self.status is AttemptStatus.SUCCEEDED,
            failure_class=self.failure_class,
            reward=self.reward,
            message=self.message,
        )

    def free_number(self) -> int:
        """The next call number."""
        return max(self.calls, default=0) + 1

    def undelivered(self) -> list[UndeliveredCall]:
        """Calls whose answer may not have arrived."""
        return [
            UndeliveredCall(
                call_number=number,
                request_hash=call.record.request_hash,
                delivered=call.delivered,
                response=call.record.response,
            )
            for number, call in sorted(self.calls.items())
            if call.delivered != "yes"
        ]

    def recalled(self, number: int) -> UndeliveredCall | None:
        """A call whose answer did not arrive after all."""
        call = self.calls.get(number)
        if call is None:
            return None
        record = call.record
        return UndeliveredCall(
            call_number=number, request_hash=record.request_hash, delivered="unknown", response=record.response
        )

    def has_unresolved_failure(self) -> bool:
        """A call that the platform failed, without a later call of the same request."""
        return any(
            not any(call.record.request_hash == hash_ and later >= number for later, call in self.calls.items())
            for number, hash_ in self.failures
        )

    def settle(self) -> None:
        """It ends: an unknown delivery is `no` if a later call repeats its prompt, else `yes`."""
        for number, call in self.calls.items():
            if call.delivered == "unknown":
                repeated = any(later > number and _same_prompt(call, other) for later, other in self.calls.items())
                call.delivered = "no" if repeated else "yes"


def _same_prompt(call: MemoryCall, other: MemoryCall) -> bool:
    ids, other_ids = call.record.prompt_token_ids, other.record.prompt_token_ids
    if ids is None or other_ids is None:
        return ids == other_ids and call.record.request_hash == other.record.request_hash
    return ids == other_ids


@dataclass
class MemoryEngine:
    """An engine and its loads: when, which version."""

    info: EngineInfo
    state: EngineState
    loads: list[tuple[float, int]]

    def version_at(self, seconds_ago: float) -> int | None:
        """The version that it held."""
        moment = time.time() - seconds_ago
        return next((version for loaded, version in reversed(self.loads) if loaded <= moment), None)
