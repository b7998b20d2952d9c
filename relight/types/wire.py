"""Requests and answers between runner, gateway and store service (HTTP, JSON).

Every mutating request can be sent twice: its key makes the second one answer like the first.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from relight.types.names import POLICY, Isolation, Network
from relight.types.resources import NamedResources
from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.store import ProcessFacts, WorkerStatus
from relight.types.tracer import Event, Link, OtelResource, SpanContext
from relight.types.upstreams import Upstream

MAX_ITEMS = 1000
"""Most items in one request."""


class Message(BaseModel):
    """Base class: unknown keys are errors. NaN and infinity are kept, so that the store can check for them."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class OpenRequest(Message):
    """Open an attempt at a rollout (rule 1)."""

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
    model: str = POLICY
    run: str | None = None
    step: int | None = None
    mode: Literal["train", "val", "test"] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    input: Any = None
    resources_id: str | None = None
    resources_version: int | None = None
    resources: NamedResources = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict[str, Any])
    config: RolloutConfig
    isolation: Isolation = "process"
    network: Network = "internet"
    alone: bool = False
    """Run it in a process of its own: its process died twice already (rule 4)."""
    deaths: int = 0
    """Its attempts whose process died; with more than 4 the rollout is given up."""
    grader: str | None = None
    """The grader that gives its reward; None: the agent does."""


class OpenAnswer(Message):
    """One of: opened, finished, wait, gone."""

    state: Literal["opened", "finished", "wait", "gone"]
    reason: str = ""
    attempt: OpenedAttempt | None = None
    outcome: AttemptOutcome | None = None
    retry_after_seconds: float = 2.0


class SpanExtra(TypedDict, total=False):
    """What is stored of a span beside its columns."""

    context: SpanContext
    parent: SpanContext
    kind: str
    start_time_unix_nano: int
    end_time_unix_nano: int


class SpanRecord(Message):
    """A span as an agent emitted it; the store gives it its sequence id."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    status: str = "UNSET"
    status_description: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict[str, Any])
    events: list[Event] = Field(default_factory=list[Event])
    links: list[Link] = Field(default_factory=list[Link])
    start_time: float
    end_time: float | None = None
    resource: OtelResource = Field(default_factory=OtelResource)
    extra: SpanExtra = Field(default_factory=SpanExtra)


@dataclass(frozen=True, slots=True, config=Message.model_config)
class AgentError:
    """An exception that an agent raised."""

    type: str = ""
    message: str = ""
    traceback: str = ""


class AgentEnd(Message):
    """What a call of an agent or a grader left at its end."""

    rewards: dict[str, float] = Field(default_factory=dict[str, float])
    """The last rewards by name, returned or emitted; the one that counts first."""
    feedback: str | None = None
    """Given with the last reward."""
    error: AgentError | None = None
    output: str = ""
    """Tail of what it printed."""
    output_bytes: int = 0
    duration_seconds: float = 0.0
    spans_dropped: int = Field(default=0, ge=0)
    """Spans that were not kept: malformed, or beyond what an attempt may send."""


class GradingRequest(Message):
    """The agent ended well; the attempt stays open until its grader has finished it."""

    attempt_id: str
    fence: int
    end: AgentEnd = Field(default_factory=AgentEnd)


class FinishRequest(GradingRequest):
    """Close an attempt. `failure_class` None means that it ended well with `reward`."""

    failure_class: FailureClass | None = None
    reward: float | None = None
    message: str = ""
    spans: list[SpanRecord] = Field(default_factory=list[SpanRecord])
    """Spans not sent before."""
    grader: str = "agent"
    """Who gave the reward and left `end`. Of a grader's own, output, duration and count of spans are not kept."""
    died: bool = False
    """A process that it shared died under it, by no known fault of one attempt: a death of the rollout (rule 4)."""


class TranscriptCall(Message):
    """A model call whose answer reached the agent."""

    request: Any
    response: Any


class Transcript(Message):
    """What a grader gets to see of an attempt."""

    input: Any = None
    """The rollout's task."""
    calls: list[TranscriptCall] = Field(default_factory=list[TranscriptCall])
    """In order."""
    output: str = ""
    """The end of the agent's output."""
    outcome: AttemptOutcome | None = None
    """How the attempt ended, if it has: then there is nothing to grade."""


class ResolveRequest(Message):
    """Look up the attempt of a key."""

    rollout_id: str
    attempt_id: str
    token: str


MAX_ENDED = 1000
"""Attempts in one question."""


class EndedAttempts(Message):
    """Attempts; in an answer, those of the request whose token is no longer valid for model calls."""

    attempt_ids: list[str] = Field(max_length=MAX_ENDED)


class RecallRequest(ResolveRequest):
    """Ask for the answer of a call whose agent says that it did not arrive."""

    call_number: int


class UndeliveredCall(Message):
    """A committed generation whose answer may not have arrived (rule 8)."""

    call_number: int
    request_hash: str
    delivered: Literal["no", "unknown"]
    response: dict[str, Any]


class RecalledCall(Message):
    """A call's answer, if it is known."""

    call: UndeliveredCall | None = None


class ResourceModel(Message):
    """A model among a rollout's resources that the gateway forwards to."""

    name: str
    """The model name in calls."""
    resource: str
    base_url: str
    model: str
    """Its name at the endpoint."""
    api_key: str | None = None


class CallContext(Message):
    """What the gateway needs to serve an attempt's model calls."""

    rollout_id: str
    attempt_id: str
    run: str | None
    """The run whose engines serve the policy; None: the rollout's run has none, or it has no run."""
    model: str
    """The model of calls that name none: the policy, or the model of the rollout's resources."""
    seed_base: str
    """`run file's seed/step/group/index/try`: hashed with the call number into the seed (rule 7)."""
    sampling: dict[str, Any]
    agent_chooses_sampling: bool
    corrected: bool = False
    """The step's update compares the sampler's logprobs with the trainer's."""
    min_version: int | None
    max_version: int | None
    """Policy versions that the step allows; None: the newest."""
    engine_wait_seconds: float
    next_call_number: int
    undelivered: list[UndeliveredCall] = Field(default_factory=list[UndeliveredCall])
    upstreams: list[Upstream] = Field(default_factory=list[Upstream])
    """Providers of other models that the run file names."""
    models: dict[str, str] = Field(default_factory=dict[str, str])
    """The run file's other names of models, with what they stand for."""
    resource_models: list[ResourceModel] = Field(default_factory=list[ResourceModel])


class EngineInfo(Message):
    """An engine that the gateway may route to."""

    engine_id: str
    run: str
    policy: str = POLICY
    url: str
    """`unix:/path.sock` or `http://host:port`."""
    model: str
    """Served model name."""
    version: int
    """Policy version that it acknowledged."""


class Choice(Message):
    """One sampled answer of a call."""

    index: int
    response_token_ids: list[int] | None
    logprobs: list[float] | None
    """Of the sampled tokens, as processed for sampling; one a token."""
    finish_reason: str | None
    complete: bool = True
    """False where the agent closed the stream before the end."""


class CallKey(Message):
    """Names a model call of an attempt whose token is alive."""

    rollout_id: str
    attempt_id: str
    token_hash: str
    """SHA-256 hex of the attempt's token: a dead one is a conflict."""
    call_number: int
    request_hash: str


class GenerationRecord(CallKey):
    """One model call as the gateway saw it."""

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


class CallFailure(CallKey):
    """A model call that the platform failed; a later success of the same request clears it."""

    message: str


class CommitResult(Message):
    """Answer to one `GenerationRecord`."""

    state: Literal["committed", "conflict", "renumber"]
    """`renumber`: the call number is taken by another request."""
    reason: str = ""
    next_call_number: int | None = None


class DeliveryMark(Message):
    """Whether the answer of a call reached the agent. `unknown` revokes a `no`: the answer is being sent again."""

    rollout_id: str
    attempt_id: str
    call_number: int
    delivered: Literal["yes", "no", "unknown"]


class Heartbeat(Message):
    """An attempt's runner is alive."""

    attempt_id: str
    fence: int
    worker_id: str


class SpanBatch(Message):
    """Spans of one attempt. Without a fence they are stored and have no other effect."""

    rollout_id: str
    attempt_id: str
    fence: int | None = None
    spans: list[SpanRecord] = Field(max_length=10_000)


class SpansStored(Message):
    """How many of them were new."""

    stored: int


class GenerationBatch(Message):
    """Model calls to commit."""

    items: list[GenerationRecord] = Field(max_length=MAX_ITEMS)


class CommitResults(Message):
    """One result for each item, in order."""

    items: list[CommitResult]


class FailureBatch(Message):
    """Model calls that the platform failed."""

    items: list[CallFailure] = Field(max_length=MAX_ITEMS)


class DeliveryBatch(Message):
    """Deliveries of answers."""

    items: list[DeliveryMark] = Field(max_length=MAX_ITEMS)


class EngineList(Message):
    """Engines that take calls."""

    items: list[EngineInfo]


class WorkerReport(Message, ProcessFacts):
    """The report of a process that it is alive and what it does; sent every 10 s, and when it becomes busy or idle."""

    worker_id: str
    kind: str
    """runner, orchestrator, gateway, gpu-worker or store."""
    host: str
    status: WorkerStatus = WorkerStatus.IDLE
    current_rollout_id: str | None = None
    """The newest of its rollouts."""
    heartbeat_stats: dict[str, Any] = Field(default_factory=dict[str, Any])


class Nothing(Message):
    """An answer without content."""
