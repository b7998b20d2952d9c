"""What runner, gateway and store service say to each other (HTTP, JSON).

Every mutating request can be sent twice: its key makes the second one answer like the first.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from relight.types.resources import NamedResources
from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.upstreams import Upstream


class Message(BaseModel):
    """Base: unknown keys are errors. NaN and infinity stay what they are, so that the store can judge them."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class OpenRequest(Message):
    """Open an attempt at a rollout (semantics 1)."""

    rollout_id: str
    try_number: int = Field(ge=1)
    execution: str
    """Names the Temporal activity execution; the same one gets the same answer."""
    worker_id: str


class AttemptOutcome(Message):
    """How an attempt ended."""

    rollout_id: str
    attempt_id: str
    try_number: int
    succeeded: bool
    failure_class: FailureClass | None = None
    reward: float | None = None
    message: str = ""
    """One line: why it failed."""


class OpenedAttempt(Message):
    """What the runner needs to run the attempt."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    fence: int
    token: str
    base_url: str
    model: str = "policy"
    run: str | None = None
    step: int | None = None
    mode: Literal["train", "val", "test"] | None = None
    input: Any = None
    resources: NamedResources = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict[str, Any])
    config: RolloutConfig
    isolation: Literal["process", "shared"] = "process"
    alone: bool = False
    """Run it alone: its process died twice already (semantics 4)."""
    deaths: int = 0
    """Attempts at it under which a process died; with one more than 4 it is given up."""
    grader: str | None = None
    """Who gives its reward; None: the agent does."""


class OpenAnswer(Message):
    """One of: opened, finished, wait, gone."""

    state: Literal["opened", "finished", "wait", "gone"]
    reason: str = ""
    attempt: OpenedAttempt | None = None
    outcome: AttemptOutcome | None = None
    retry_after_seconds: float = 2.0


class SpanRecord(Message):
    """A span as an agent emitted it; the store gives it its sequence id."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    status: str = "UNSET"
    status_description: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict[str, Any])
    events: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    links: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    start_time: float
    end_time: float | None = None


class FinishRequest(Message):
    """Close an attempt. `failure_class` None means that it ended well with `reward`."""

    attempt_id: str
    fence: int
    failure_class: FailureClass | None = None
    reward: float | None = None
    message: str = ""
    error: dict[str, Any] | None = None
    """Type, message, traceback."""
    output: str = ""
    """Tail of what it printed."""
    output_bytes: int = 0
    duration_seconds: float = 0.0
    spans: list[SpanRecord] = Field(default_factory=list[SpanRecord])
    """Spans not sent before."""
    grader: str = "agent"
    """Who gave the reward. A grader says nothing about output and duration: the runner has handed these over."""
    died: bool = False
    """A process that it shared died under it, and nobody is known to blame: a death of the rollout (semantics 4)."""


class HandOver(Message):
    """The agent ended well; the attempt stays open until its grader has finished it."""

    attempt_id: str
    fence: int
    output: str = ""
    """Tail of what it printed."""
    output_bytes: int = 0
    duration_seconds: float = 0.0


class TranscriptCall(Message):
    """A model call whose answer reached the agent."""

    request: Any
    response: Any


class Transcript(Message):
    """What a grader judges an attempt by."""

    input: Any = None
    """The rollout's task."""
    calls: list[TranscriptCall] = Field(default_factory=list[TranscriptCall])
    """In order."""
    output: str = ""
    """Tail of what the agent printed."""
    outcome: AttemptOutcome | None = None
    """How the attempt ended, if it has: then there is nothing to judge."""


class ResolveRequest(Message):
    """Who is behind this key?"""

    rollout_id: str
    attempt_id: str
    token: str


class RecallRequest(ResolveRequest):
    """What was the answer of this call? Its agent says that it did not arrive."""

    call_number: int


class UndeliveredCall(Message):
    """A committed generation whose answer may not have arrived (semantics 8)."""

    call_number: int
    request_hash: str
    delivered: Literal["no", "unknown"]
    response: dict[str, Any]


class RecalledCall(Message):
    """A call's answer, where it is known."""

    call: UndeliveredCall | None = None


class CallContext(Message):
    """What the gateway must know to serve an attempt's model calls."""

    rollout_id: str
    attempt_id: str
    run: str | None
    step: int | None
    model: str
    seed_base: str
    """`run file's seed/step/group/index/try`: hashed with the call number into the seed (semantics 7)."""
    sampling: dict[str, Any]
    agent_chooses_sampling: bool
    min_version: int | None
    max_version: int | None
    """Policy versions that the step allows."""
    engine_wait_seconds: float
    next_call_number: int
    undelivered: list[UndeliveredCall] = Field(default_factory=list[UndeliveredCall])
    upstreams: list[Upstream] = Field(default_factory=list[Upstream])
    """Providers of other models that the run file names."""


class EngineInfo(Message):
    """An engine that the gateway may route to."""

    engine_id: str
    run: str
    url: str
    """`unix:/path.sock` or `http://host:port`."""
    model: str
    """Served model name."""
    version: int
    """Policy version that it acknowledged."""
    load: int
    """Number of its last weight load; grows."""


class Choice(Message):
    """One sampled answer of a call."""

    index: int
    response_token_ids: list[int] | None
    logprobs: list[float] | None
    """Of the sampled tokens, as processed for sampling; one a token."""
    finish_reason: str | None
    complete: bool = True
    """False where the agent closed the stream before the end."""


class GenerationRecord(Message):
    """One model call as the gateway saw it."""

    rollout_id: str
    attempt_id: str
    token_hash: str
    """SHA-256 hex of the attempt's token: a dead one is a conflict."""
    call_number: int
    request_hash: str
    route: str
    request: dict[str, Any]
    response: dict[str, Any]
    prompt_token_ids: list[int] | None
    choices: list[Choice]
    sampling: dict[str, Any]
    seed: int
    engine_id: str
    model: str
    duration_seconds: float
    """From the forward to the engine until the commit was asked for; dates the policy version at the start."""
    delivered: Literal["yes", "unknown"] = "unknown"
    """`yes` only for a stream that the agent itself closed."""


class CallFailure(Message):
    """A model call that the platform failed; a later success of the same request clears it."""

    rollout_id: str
    attempt_id: str
    token_hash: str
    call_number: int
    request_hash: str
    message: str


class CommitResult(Message):
    """Answer to one `GenerationRecord`."""

    state: Literal["committed", "conflict", "renumber"]
    """`renumber`: the call number is taken by another request."""
    reason: str = ""
    next_call_number: int | None = None


class DeliveryMark(Message):
    """Whether the answer of a call reached the agent. `unknown` takes a `no` back: it is being given again."""

    rollout_id: str
    attempt_id: str
    call_number: int
    delivered: Literal["yes", "no", "unknown"]
