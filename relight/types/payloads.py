"""Inputs and results of workflows, activities, signals and queries.

Ids and small scalars only: rows travel through Postgres. A field added later has a default, for histories without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from relight.types.names import GPU_QUEUE, RUNNER_QUEUE
from relight.types.rollout import RolloutConfig
from relight.types.run_file import RunFile
from relight.types.wire import AttemptOutcome

Kind = Literal["train", "eval"]
KEPT_EVALUATIONS = 10
CHECK_SECONDS = 60.0


class Payload(BaseModel):
    """Base class. Unknown keys are ignored, so that older code can read what newer code wrote."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def taken_from(cls, source: object, **own: Any) -> Self:
        """One with these values, and those of `source` for all other fields that both have."""
        shared = [name for name in cls.model_fields if hasattr(source, name) and name not in own]
        return cls(**{name: getattr(source, name) for name in shared}, **own)


class RecordedRun(Payload):
    """What the store has of a run, for the workflow that drives it."""

    epoch: int
    total_steps: int
    first_version: int = 0
    """The policy version that the run started from: 0, or the step at which it was forked."""
    evaluated: int = -1
    """The newest policy version whose evaluation is over, with or without a score."""
    evaluations: dict[int, float] = Field(default_factory=dict[int, float])
    """Held-out score by policy version; in a cursor the first and the newest 10."""
    concurrency: int | None = None
    """As `set_concurrency` left it."""
    replays: bool = False
    """Nothing is sampled: the run trains on its parent's rollouts."""


class Cursor(RecordedRun):
    """The state of a run, carried from one continue-as-new to the next."""

    step: int
    """The next step to do; 0 is the evaluation of the given model."""
    gpu_queue: str | None = None
    counters: dict[str, int] = Field(default_factory=dict[str, int])
    rewards: list[float] = Field(default_factory=list[float])
    """Mean reward of the last steps, newest last; at most 20."""
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """From the last notice."""
    looked_ahead: bool = False
    """The preflight is over."""
    started: list[tuple[int, int]] = Field(default_factory=list[tuple[int, int]])
    """Batches of the open step that were started, by step and number."""
    closed: list[tuple[int, int]] = Field(default_factory=list[tuple[int, int]])
    """Those whose report is counted."""
    failures: list[str] = Field(default_factory=list[str])
    """Why the update of the open step failed, newest last."""
    phase: str = "starting"
    waiting_for: str | None = None
    paused: bool = False
    refused: int = 0


def kept_evaluations(by_version: Mapping[int, float]) -> dict[int, float]:
    """The evaluations that a run carries: the first and the newest 10."""
    versions = sorted(by_version)
    return {version: by_version[version] for version in sorted({*versions[:1], *versions[-KEPT_EVALUATIONS:]})}


class Parent(BaseModel):
    """The run that a fork or replay was made from."""

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
    """Who starts or resumes it."""
    lifts: datetime | None = None
    """The time of the cancel that `relight resume` lifts; a later one is not lifted."""
    asked: str | None = None
    """Mark of the request over HTTP that it is started for; it may be called off until the run has begun."""
    history_limit: int = Field(default=4000, ge=1)
    """Events after which the workflow continues as new, between two steps or in a wait."""
    check_seconds: float = Field(default=CHECK_SECONDS, gt=0)
    """The longest interval between two checks of what the run waits for."""
    gpu_queue: str = GPU_QUEUE
    """Task queue on which a GPU host is claimed."""


class RunRequest(Payload):
    """A run, and the epoch of the workflow that drives it."""

    run: str
    epoch: int = 0


class RolloutRequest(Payload):
    """A rollout, and the run that it belongs to, if any."""

    rollout_id: str
    run: str | None = None
    epoch: int = 0


class BeginInput(Payload):
    """Input of `begin_run`, the first activity of a run."""

    run: str
    driver: str
    """Temporal's first execution run id, or after a reset this execution's: the same driver begins once."""
    file: RunFile
    parent: Parent | None = None
    actor: str = "operator"
    epoch: int | None = None
    """Epoch of an execution that was reset: it drives the ended run again, unless another workflow does."""
    lifts: datetime | None = None
    """The time of the cancel that `relight resume` lifts."""
    asked: str | None = None
    temporal_address: str | None = None
    """The Temporal server that drives the run; filled in by the activity."""
    temporal_namespace: str | None = None


class RunState(RecordedRun):
    """Answer of `begin_run`."""

    next_step: int
    finished: bool = False
    """The run has finished: there is nothing left to do."""


class Readiness(Payload):
    """Answer of `check_runners`."""

    waiting_for: str | None = None
    paused: bool = False
    """The run's row says that it is paused."""


class CloseRolloutInput(RolloutRequest):
    """Input of `close_rollout`: a cancelled rollout to close."""

    actor: str = "temporal"
    message: str = "cancelled"


class CheckInput(RunRequest):
    """What a run needs before it can continue."""

    agent: str
    runner_queue: str
    gpu_queue: str | None = None
    phase: str = "starting"
    """The phase of the run when nothing is missing."""
    grader: str | None = None


class GpuClaim(Payload):
    """Answer of `claim_gpu`."""

    granted: bool
    host: str | None = None
    task_queue: str | None = None
    waiting_for: str | None = None


class EngineState(Payload):
    """Answer of `prepare_engines`."""

    engines: int
    version: int


class StepInput(RunRequest):
    """A step of a run."""

    step: int


class StepPlan(Payload):
    """A planned step, or why there is none. It has counts only; the rows are in Postgres."""

    step: int
    state: Literal["planned", "paused", "stopped", "recorded"] = "planned"
    """`paused` and `stopped`: nothing was planned; `recorded`: the step is done."""
    batches: int = 0
    rollouts: int = 0


class RolloutsInput(RunRequest):
    """Where the rollouts of a workflow run, and how."""

    agent: str
    runner_queue: str
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    concurrency: int | None = None
    grader_queue: str | None = None


class BatchInput(RolloutsInput):
    """Input of RolloutBatchWorkflow: which rollouts of a plan to run."""

    step: int
    """The step; in an evaluation the policy version."""
    kind: Kind = "train"
    batch: int
    notify: bool = False
    """Send `batch_done` to `train/<run>` at the end."""
    fresh: bool = True
    """False after a continue-as-new: rollouts that were cancelled meanwhile stay cancelled."""
    ended: int = 0
    """Rollouts that ended before it continued as new."""
    failed: int = 0
    """Those of them that failed."""
    held: str | None = None
    """Why it was held when it continued as new."""


class Notice(RunRequest):
    """What the store found out about a run and its workflow has to know; the newest one counts."""

    paused: bool = False
    """The run's row says that it is paused."""
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """All warnings of the run, by name."""


class BatchReport(Payload):
    """How a batch ended: counts only; the rows are the truth."""

    run: str
    step: int
    kind: Kind = "train"
    batch: int
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    failures: dict[str, int] = Field(default_factory=dict[str, int])


class BatchQuery(CheckInput):
    """Input of `batch_status`: which batches of a step to check, and what the run needs meanwhile."""

    step: int
    batches: list[int]
    ending: bool = False
    """The run is ending: what it needs is not checked, and a cancel is no error."""


class BatchAnswer(Readiness):
    """Reports of batches that have closed, and the numbers of those that ended without closing."""

    reports: list[BatchReport] = Field(default_factory=list[BatchReport])
    ended: list[int] = Field(default_factory=list[int])


class RolloutInput(RolloutRequest):
    """Input of RolloutWorkflow."""

    queue: str
    """Task queue of the runners that serve its agent."""
    step: int | None = None
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    first_try: int = 1
    grader_queue: str | None = None
    """Task queue of the runners that serve its grader, if it has one."""


class AttemptInput(RolloutRequest):
    """Input of `run_attempt`."""

    try_number: int


class GradeInput(RolloutRequest):
    """Input of `grade_attempt`."""

    attempt_id: str
    fence: int
    grader: str
    try_number: int = 1


class NamedRewards(Payload):
    """The named rewards and the feedback of a grader."""

    dimensions: dict[str, float] = Field(default_factory=dict[str, float])
    """The first one is the reward that counts."""
    feedback: str | None = None


class RolloutResult(AttemptOutcome, Payload):
    """Output of RolloutWorkflow, and of `run_attempt` and `grade_attempt`: how the last attempt ended."""

    attempt_id: str = ""
    """Empty if there was none."""
    try_number: int = 1
    succeeded: bool = False
    gone: bool = False
    """Cancelled or superseded: nothing ran."""
    grade: GradeInput | None = None
    """Set if the agent succeeded and its grader has yet to give the reward."""
    named: NamedRewards | None = None
    """Set if an attempt was graded again, which writes nothing."""


class NextRolloutsInput(StepInput):
    """Input of `advance_batch`, which finds the rollouts that are left to run."""

    kind: Kind = "train"
    batch: int
    lost: list[tuple[int, int]] = Field(default_factory=list[tuple[int, int]])
    """Group and index of rollouts whose workflow ended without a result: they are closed as `infrastructure`."""
    fresh: bool = False
    """The batch has just begun: rollouts that were cancelled with an earlier execution of it are opened again."""


class NextRollouts(Payload):
    """Rollouts to run now, by group, index and try; or, with nothing left, the report of the batch; or `held`."""

    rollouts: list[tuple[int, int, int]] = Field(default_factory=list[tuple[int, int, int]])
    tasks: dict[int, int] = Field(default_factory=dict[int, int])
    """The position of each group's task in its data set."""
    report: BatchReport | None = None
    held: str | None = None
    """Why the batch is not closed although nothing is left: too many rollouts failed and the run was paused."""
    warnings: dict[str, str] | None = None
    """All warnings of the run, if any has changed."""


class PreflightState(Payload):
    """Rollouts that a preflight has to run; none: it is over, and found nothing that stops the run."""

    rollouts: list[str] = Field(default_factory=list[str])
    tasks: dict[str, str] = Field(default_factory=dict[str, str])
    """The task of each, as `names.task_name` writes it."""


class UpdateResult(Payload):
    """Answer of `update_policy`."""

    version: int
    unchanged: bool = False
    reward_mean: float | None = None


class EvaluationInput(RolloutsInput):
    """Input of EvaluationWorkflow: evaluate policy version `version`."""

    version: int
    closed: list[int] = Field(default_factory=list[int])
    """Batches that closed before it continued as new."""


class EvaluationResult(Payload):
    """The scores of an evaluation."""

    version: int
    score: float | None = None
    """Mean over all rollouts; a failure counts as `failures.rewards` of the run file says, by default 0."""
    reward: float | None = None
    """Mean over real rewards."""
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
    """The last rollout that was processed."""
    graded: int = 0
    failed: int = 0


class RegradePage(Payload):
    """The rollouts and attempts to grade next."""

    attempts: list[tuple[str, str]] = Field(default_factory=list[tuple[str, str]])


class RegradedRewards(Payload):
    """Rewards of a regrade to record: rollout, attempt, value."""

    run: str
    grader: str
    rewards: list[tuple[str, str, float]]
    named: dict[str, NamedRewards] = Field(default_factory=dict[str, NamedRewards])
    """Named rewards by attempt."""


class RegradeResult(Payload):
    """How many attempts the grader graded, and on how many it failed."""

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
    """The result of a change."""

    accepted: bool
    reason: str = ""
    effective_step: int | None = None
    before: Any = None
    after: Any = None


class FinishInput(RunRequest):
    """Input of `finish_run`."""

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
    """Held-out score by policy version."""
    refused: int = 0
    counters: dict[str, int] = Field(default_factory=dict[str, int])
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
