"""What workflows and activities say to each other through Temporal.

Ids and small scalars only: rows travel through Postgres. One model in and one out, so that fields can be added; a field
added later has a default, since histories of live runs hold the older form.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.run_file import RunFile

Kind = Literal["train", "eval"]


class Payload(BaseModel):
    """Base. Unknown keys are ignored, so that older code reads what newer code wrote."""

    model_config = ConfigDict(extra="ignore")


class Cursor(Payload):
    """Where a run stands, carried from one continue-as-new to the next."""

    epoch: int
    step: int
    """The next step to do; 0 is the evaluation of the given model."""
    total_steps: int
    gpu_queue: str | None = None
    counters: dict[str, int] = Field(default_factory=dict[str, int])
    rewards: list[float] = Field(default_factory=list[float])
    """Mean reward of the last steps, newest last; at most 20."""
    evaluations: dict[int, float] = Field(default_factory=dict[int, float])
    """Held-out reward by policy version; the first and the newest 10."""


class TrainingInput(RunFile):
    """Input of TrainingWorkflow: the run file; `cursor` is set by the workflow itself when it continues as new."""

    cursor: Cursor | None = None


class RunRequest(Payload):
    """Names a run and who drives it."""

    run: str
    epoch: int = 0


class BeginInput(Payload):
    """First activity of a run."""

    run: str
    driver: str
    """Temporal's first execution run id: the same driver begins once."""
    file: RunFile


class RunState(Payload):
    """What `begin_run` found or made."""

    run: str
    epoch: int
    next_step: int
    total_steps: int
    evaluated: list[int] = Field(default_factory=list[int])
    """Versions whose evaluation is recorded."""
    finished: bool = False
    evaluations: dict[int, float] = Field(default_factory=dict[int, float])


class Readiness(Payload):
    """Answer of `check_runners`."""

    ready: bool
    waiting_for: str | None = None


class CheckInput(RunRequest):
    """What a run needs before it can go on."""

    agent: str
    runner_queue: str
    gpu_queue: str | None = None


class GpuClaim(Payload):
    """Answer of `claim_gpu`."""

    granted: bool
    host: str | None = None
    task_queue: str | None = None
    waiting_for: str | None = None


class EngineInput(RunRequest):
    """Ask a GPU host to hold a run's model."""

    model: str
    vllm: dict[str, Any] = Field(default_factory=dict[str, Any])
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])


class EngineState(Payload):
    """Answer of `prepare_engines`."""

    engines: int
    version: int


class StepInput(RunRequest):
    """Names a step."""

    step: int


class StepPlan(Payload):
    """A planned step: ranges, no rows."""

    run: str
    step: int
    paused: bool = False
    """True where planning found the run paused and wrote nothing."""
    stop: bool = False
    """True where the run was told to stop before this step."""
    recorded: bool = False
    """True where the step is done already."""
    kind: Kind = "train"
    groups: int = 0
    group_size: int = 0
    batches: list[BatchRange] = Field(default_factory=list["BatchRange"])
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    learning_rate: float | None = None


class BatchRange(Payload):
    """Groups `first_group` up to, not including, `end_group`."""

    batch: int
    first_group: int
    end_group: int
    closed: bool = False


class BatchInput(RunRequest):
    """Input of RolloutBatchWorkflow."""

    step: int
    kind: Kind = "train"
    range: BatchRange
    group_size: int
    agent: str
    runner_queue: str
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    concurrency: int | None = None
    fill_up_rounds: int = 0
    notify: str | None = None
    """Workflow id that is told by `batch_done`."""


class BatchReport(Payload):
    """How a batch ended: counts only; the rows are the truth."""

    run: str
    step: int
    kind: Kind = "train"
    batch: int
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    reward_sum: float = 0.0
    rewarded: int = 0
    failures: dict[str, int] = Field(default_factory=dict[str, int])


class RolloutInput(Payload):
    """Input of RolloutWorkflow."""

    rollout_id: str
    queue: str
    """Task queue of the runners that serve its agent."""
    run: str | None = None
    epoch: int = 0
    step: int | None = None
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    first_try: int = 1


class AttemptInput(Payload):
    """Input of `run_attempt`."""

    rollout_id: str
    try_number: int
    run: str | None = None
    epoch: int = 0


class RolloutResult(Payload):
    """Output of RolloutWorkflow, and of `run_attempt` for its try."""

    rollout_id: str
    attempt_id: str | None = None
    succeeded: bool = False
    failure_class: FailureClass | None = None
    reward: float | None = None
    message: str = ""
    tries: int = 1
    gone: bool = False
    """Cancelled or superseded: nothing ran."""


class CloseBatchInput(RunRequest):
    """Close a batch: decide which attempt counts, fill up what the platform lost."""

    step: int
    kind: Kind = "train"
    batch: int
    round: int = 0
    final: bool = False
    """True: no more filling up."""
    missing: list[str] = Field(default_factory=list[str])
    """Rollouts whose child workflow ended without a row (cancelled, terminated); at most 100 are named."""


class ClosedBatch(Payload):
    """Answer of `close_batch`: a report, or more rollouts to run first."""

    report: BatchReport | None = None
    more: list[str] = Field(default_factory=list[str])
    """Ids of rollouts that fill up short groups."""


class UpdateResult(Payload):
    """Answer of `update_policy`."""

    version: int
    unchanged: bool = False
    rows: int = 0
    rollouts: int = 0
    reward_mean: float | None = None
    seconds: dict[str, float] = Field(default_factory=dict[str, float])


class EvaluationInput(RunRequest):
    """Input of EvaluationWorkflow: evaluate policy version `version`."""

    version: int
    agent: str
    runner_queue: str
    concurrency: int | None = None


class EvaluationResult(Payload):
    """Mean over real rewards; failures are counted beside it."""

    version: int
    reward: float | None = None
    rewarded: int = 0
    failed: int = 0


class ChangeInput(RunRequest):
    """A change to a live run: recorded before it is answered."""

    action: str
    actor: str = "workflow"
    request_key: str
    value: Any = None


class ChangeResult(Payload):
    """What came of a change."""

    accepted: bool
    reason: str = ""
    effective_step: int | None = None
    before: Any = None
    after: Any = None


class FinishInput(RunRequest):
    """Close a run."""

    status: Literal["finished", "failed", "cancelled"]
    error: str | None = None


class Progress(Payload):
    """Answer of the query `progress`."""

    run: str
    status: str
    phase: str
    step: int
    total_steps: int
    paused: bool = False
    waiting_for: str | None = None
    batches_done: int = 0
    batches: int = 0
    rewards: list[float] = Field(default_factory=list[float])
    evaluations: dict[int, float] = Field(default_factory=dict[int, float])
    refused: int = 0
    counters: dict[str, int] = Field(default_factory=dict[str, int])


StepPlan.model_rebuild()
