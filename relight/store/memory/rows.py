"""Rows of the stores in memory, and the rules that concern one of them alone."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, Field

from relight.errors import NotFoundError
from relight.types.names import Isolation, Network
from relight.types.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    FailureClass,
    Rollout,
)
from relight.types.tracer import Span
from relight.types.upstreams import Upstream
from relight.types.wire import AgentEnd, AttemptOutcome, EngineInfo, GenerationRecord, UndeliveredCall

EngineState = Literal["starting", "ready", "loading", "dead", "stopped"]


@dataclass
class MemoryRun:
    """What the store knows of a run."""

    sampling: dict[str, Any] = field(default_factory=dict[str, Any])
    isolation: Isolation = "process"
    network: Network = "internet"
    engine_wait_seconds: float = 300.0
    grader: str | None = None
    upstreams: list[Upstream] = field(default_factory=list[Upstream])
    models: dict[str, str] = field(default_factory=dict[str, str])
    paused: bool = False
    status: str = "running"
    corrected: bool = False
    """Its updates correct the mismatch between sampler and trainer."""
    has_engines: bool = True
    """It trains a model, which its engines serve."""
    resources_id: str | None = None

    @property
    def set_sampling(self) -> dict[str, Any]:
        """Sampling parameters as engines know them: those that are set."""
        return {key: value for key, value in self.sampling.items() if value is not None and key != "agent_chooses"}


@dataclass
class MemoryCall:
    """A committed model call."""

    record: GenerationRecord
    delivered: Literal["yes", "no", "unknown"]
    version_start: int | None
    version_end: int | None
    sequence_id: int
    created_at: float = field(default_factory=time.time)

    def as_undelivered(self, delivered: Literal["no", "unknown"]) -> UndeliveredCall:
        """The call, for a gateway that sends its answer again."""
        known = self.record.model_dump(include={"call_number", "request_hash", "response"})
        return UndeliveredCall(**known, delivered=delivered)


@dataclass
class AttemptRow:
    """An attempt's row."""

    attempt_id: str
    rollout_id: str
    sequence_id: int
    try_number: int
    open_key: str
    fence: int
    token_hash: str
    worker_id: str | None
    start_time: float = field(default_factory=time.time)
    end_time: float | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    status: AttemptStatus = AttemptStatus.PREPARING
    failure_class: FailureClass | None = None
    message: str = ""
    reward: float | None = None
    grader: str = "agent"
    left: AgentEnd = field(default_factory=AgentEnd)
    """By its agent."""
    graded: AgentEnd = field(default_factory=AgentEnd)
    """Who gave the reward left this: its agent or its grader."""
    calls: dict[int, MemoryCall] = field(default_factory=dict[int, MemoryCall])
    failures: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.end_time is not None

    def shown(self) -> Attempt:
        """The attempt as users see it; not a copy."""
        return Attempt.model_construct(**_columns(self, Attempt))

    def end(self) -> None:
        """End it, unless it has ended; unknown deliveries are decided."""
        if self.end_time is None:
            self.settle_deliveries()
            self.end_time = time.time()

    @property
    def outcome(self) -> AttemptOutcome:
        """How it ended."""
        return AttemptOutcome.model_construct(**_columns(self, AttemptOutcome))

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.status is AttemptStatus.SUCCEEDED

    @property
    def error(self) -> dict[str, Any] | None:
        """The exception that ended it."""
        return self.graded.error and asdict(self.graded.error)

    @property
    def spans_dropped(self) -> int:
        """How many spans of its agent were not kept."""
        return self.left.spans_dropped

    def free_number(self) -> int:
        """The next call number."""
        return max(self.calls, default=0) + 1

    def undelivered(self) -> list[UndeliveredCall]:
        """Calls whose answer may not have arrived."""
        return [
            call.as_undelivered(call.delivered) for _, call in sorted(self.calls.items()) if call.delivered != "yes"
        ]

    def recalled(self, number: int) -> UndeliveredCall | None:
        """A call whose answer did not arrive after all."""
        call = self.calls.get(number)
        return call and call.as_undelivered("unknown")

    def has_unresolved_failure(self) -> bool:
        """A call that the platform failed, without a later call of the same request."""
        return any(
            not any(call.record.request_hash == hash_ and later >= number for later, call in self.calls.items())
            for number, hash_ in self.failures
        )

    def settle_deliveries(self) -> None:
        """An unknown delivery is `no` if a later call repeats its prompt, else `yes`."""
        for number, call in self.calls.items():
            if call.delivered == "unknown":
                repeated = any(later > number and _same_prompt(call, other) for later, other in self.calls.items())
                call.delivered = "no" if repeated else "yes"


def _same_prompt(call: MemoryCall, other: MemoryCall) -> bool:
    ids, other_ids = call.record.prompt_token_ids, other.record.prompt_token_ids
    if ids is None or other_ids is None:
        return ids == other_ids and call.record.request_hash == other.record.request_hash
    return ids == other_ids


class RolloutRow(Rollout):
    """A rollout with its attempts and spans."""

    start_time: float = Field(default_factory=time.time)
    by_queue: bool
    """False: a workflow drives it."""
    outside: bool = True
    """False: a run planned it."""
    seed_base: str = ""
    min_version: int | None = None
    max_version: int | None = None
    failure: str | None = None
    deaths: int = 0
    final_attempt: str | None = None
    """The attempt that counts, once its batch is closed."""
    queue_position: int | None = None
    """In the queue; None: it is not queued."""
    due: float = 0.0
    """A retry with back-off can't be claimed before this time."""
    next_sequence: int = 1
    attempts: list[AttemptRow] = Field(default_factory=list[AttemptRow])
    spans: dict[tuple[str, str], Span] = Field(default_factory=dict[tuple[str, str], Span])

    @property
    def newest(self) -> AttemptRow | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None

    def shown(self, attempt: AttemptRow | None = None) -> Rollout:
        """The rollout as users see it, with this attempt or the newest; not a copy."""
        at_hand = attempt or self.newest
        return self.attempted(at_hand) if at_hand else Rollout.model_construct(**_columns(self, Rollout))

    def attempted(self, attempt: AttemptRow) -> AttemptedRollout:
        """The rollout with an attempt, as users see it; not a copy."""
        return AttemptedRollout.model_construct(**_columns(self, Rollout), attempt=attempt.shown())

    def attempt(self, attempt_id: str) -> AttemptRow:
        """An attempt by its id, or the `latest`."""
        for attempt in reversed(self.attempts):
            if attempt_id in (attempt.attempt_id, "latest"):
                return attempt
        raise NotFoundError(f"rollout {self.rollout_id} has no attempt {attempt_id}")


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


def _columns(row: object, shown: type[BaseModel]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in shown.model_fields}
