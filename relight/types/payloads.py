"""What workflows and activities say to each other through Temporal.

Ids and small scalars only: rows travel through Postgres. One model in and one out, so that fields can be added; a field
added later has a default, since histories of live runs hold the older form.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from relight.types.names import GPU_QUEUE, RUNNER_QUEUE
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
    concurrency: int | None = None
    """As `set_concurrency` left it."""
    first_version: int = 0
    """The policy version that the run started from: 0, or the step at which it was forked."""
    replays: bool = False
    """Nothing is sampled: the parent's rollouts train."""
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """As the last notice told them."""
    looked_ahead: bool = False
    """The preflight is over."""


class Parent(BaseModel):
    """The run that a run comes from."""

    model_config = ConfigDict(extra="forbid")

    run: str
    step: int = Field(default=0, ge=0)
    """The run starts from this policy version of its parent; 0 is the given model."""
    replay: bool = False
    """Train on the parent's rollouts instead of sampling."""


class TrainingInput(RunFile):
    """Input of TrainingWorkflow: the run file; `cursor` is set by the workflow itself when it continues as new."""

    cursor: Cursor | None = None
    parent: Parent | None = None
    """Where the run is a fork or a replay; read when the run is new."""
    actor: str = "operator"
    """Who starts it, or drives it again."""
    history_limit: int = Field(default=4000, ge=1)
    """Events after which the workflow continues as new, between two steps."""
    gpu_queue: str = GPU_QUEUE
    """Where a GPU host is asked for."""

    def file(self) -> RunFile:
        """The run file alone."""
        return RunFile.model_validate(
            self.model_dump(exclude={"cursor", "parent", "actor", "history_limit", "gpu_queue"})
        )


class RunRequest(Payload):
    """Names a run and who drives it."""

    run: str
    epoch: int = 0


class BeginInput(Payload):
    """First activity of a run."""

    run: str
    driver: str
    """Temporal's first execution run id, or after a reset this execution's: the same driver begins once."""
    file: RunFile
    parent: Parent | None = None
    actor: str = "operator"
    epoch: int | None = None
    """Of the execution that a reset brought back: the ended run is driven again, unless somebody else has done so."""


class RunState(Payload):
    """What `begin_run` found or made."""

    run: str
    epoch: int
    next_step: int
    total_steps: int
    evaluated: list[int] = Field(default_factory=list[int])
    """Versions whose evaluation is recorded."""
    finished: bool = False
    """The run has ended well: there is nothing left to do."""
    evaluations: dict[int, float] = Field(default_factory=dict[int, float])
    concurrency: int | None = None
    first_version: int = 0
    replays: bool = False


class Readiness(Payload):
    """Answer of `check_runners`."""

    ready: bool
    waiting_for: str | None = None


class BatchQuery(RunRequest):
    """Has this batch closed?"""

    step: int
    batch: int


class BatchAnswer(Payload):
    """The report of a batch that has closed, or None."""

    report: BatchReport | None = None


class CloseRolloutInput(Payload):
    """Close a rollout that was cancelled."""

    rollout_id: str
    actor: str = "temporal"
    run: str | None = None
    epoch: int = 0
    message: str = "cancelled"


class CheckInput(RunRequest):
    """What a run needs before it can go on."""

    agent: str
    runner_queue: str
    gpu_queue: str | None = None
    phase: str = "starting"
    """What the run does once nothing is missing."""
    grader: str | None = None


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
    """A planned step, or why there is none: counts only, the rows are in Postgres."""

    run: str
    step: int
    state: Literal["planned", "paused", "stopped", "recorded"] = "planned"
    """`paused` and `stopped` planned nothing; `recorded`: the step is done."""
    batches: int = 0
    rollouts: int = 0
    learning_rate: float | None = None


class BatchInput(RunRequest):
    """Input of RolloutBatchWorkflow: which rows of a plan to play, and where."""

    step: int
    """The step; in an evaluation the policy version."""
    kind: Kind = "train"
    batch: int
    agent: str
    runner_queue: str
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    concurrency: int | None = None
    notify: bool = False
    """Tell `train/<run>` by `batch_done`."""
    grader_queue: str | None = None


class Notice(RunRequest):
    """What the store found about a run while its workflow was not looking; the newest one counts."""

    paused: bool = False
    """The run is paused by now, as its row says."""
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """All that it should know and that does not stop it, by name."""


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
    grader_queue: str | None = None
    """Task queue of the runners that serve its grader, where it has one."""


class AttemptInput(Payload):
    """Input of `run_attempt`."""

    rollout_id: str
    try_number: int
    run: str | None = None
    epoch: int = 0


class GradeInput(Payload):
    """Input of `grade_attempt`."""

    rollout_id: str
    attempt_id: str
    fence: int
    grader: str
    try_number: int = 1
    run: str | None = None
    epoch: int = 0


class RolloutResult(Payload):
    """Output of RolloutWorkflow, and of `run_attempt` and `grade_attempt` for their try."""

    rollout_id: str
    attempt_id: str | None = None
    succeeded: bool = False
    failure_class: FailureClass | None = None
    reward: float | None = None
    message: str = ""
    tries: int = 1
    gone: bool = False
    """Cancelled or superseded: nothing ran."""
    grader: str | None = None
    """Set where the agent ended well and this grader has yet to give the reward."""
    fence: int | None = None
    """Of the attempt that is to be graded."""


class AdvanceInput(RunRequest):
    """What is left to run in a batch?"""

    step: int
    kind: Kind = "train"
    batch: int
    lost: list[tuple[int, int]] = Field(default_factory=list[tuple[int, int]])
    """Group and index of rollouts whose workflow ended without a word: they close as `infrastructure`."""
    fresh: bool = False
    """The batch has just begun. What was cancelled with an earlier execution of it is open again."""


class Advance(Payload):
    """Rollouts to run now, by group, index and try; or, with nothing left, the report of the batch; or `held`."""

    rollouts: list[tuple[int, int, int]] = Field(default_factory=list[tuple[int, int, int]])
    report: BatchReport | None = None
    held: str | None = None
    """Why the batch is not closed though nothing is left: too much failed, and the run has paused itself."""
    warnings: dict[str, str] | None = None
    """All of the run's, where this changed any."""


class PreflightState(Payload):
    """Rollouts that a preflight plays now; with none left it has found nothing that stops the run."""

    rollouts: list[str] = Field(default_factory=list[str])


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
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    concurrency: int | None = None
    grader_queue: str | None = None


class EvaluationResult(Payload):
    """Mean over real rewards; failures are counted beside it."""

    version: int
    reward: float | None = None
    rewarded: int = 0
    failed: int = 0


class RegradeInput(Payload):
    """Input of RegradeWorkflow; the last fields are its own, from one continue-as-new to the next."""

    run: str
    grader: str
    runner_queue: str = RUNNER_QUEUE
    step: int | None = None
    """Only this step's rollouts."""
    actor: str = "operator"
    begun: bool = False
    after: str = ""
    """The last rollout that was looked at."""
    graded: int = 0
    failed: int = 0


class RegradePage(Payload):
    """Rollout and attempt of what is to be judged next."""

    attempts: list[tuple[str, str]] = Field(default_factory=list[tuple[str, str]])


class Judgements(Payload):
    """Rewards to keep: rollout, attempt, value."""

    run: str
    grader: str
    rewards: list[tuple[str, str, float]]


class RegradeResult(Payload):
    """How many attempts the grader gave a reward, and how many it failed on."""

    run: str
    grader: str
    graded: int = 0
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
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """What the run should know and does not stop it, by name."""
