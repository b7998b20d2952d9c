"""Views of runs and rollouts: the answers of the store's read-only routes.

Readers ignore keys that they don't know, so an older command line reads a newer service.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from relight.types.names import POLICY
from relight.types.queries import MAX_PAGE
from relight.types.run_file import RunFile, known_keys, parse_run_file
from relight.types.store import ProcessFacts

T = TypeVar("T")


class View(BaseModel):
    """Base."""

    model_config = ConfigDict(extra="ignore")


class Page(View, Generic[T]):
    """Some of many; `next` asks for more."""

    items: list[T]
    next: str | None = None
    """Cursor of the next page; null on the last."""


class Counts(View):
    """Numbers of rollouts of a step or an evaluation by status."""

    planned: int = 0
    """All of them."""
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    """Attempts beyond the first."""
    failures: dict[str, int] = Field(default_factory=dict[str, int])
    """Failed and cancelled ones by class."""
    reward_mean: float | None = None
    """Over the real rewards so far."""

    @property
    def done(self) -> int:
        """Those that have ended."""
        return self.succeeded + self.failed + self.cancelled


class StepView(View):
    """One step of a run."""

    step: int
    status: str
    rollouts: Counts = Field(default_factory=Counts)
    reward: float | None = None
    unchanged: bool = False
    """No optimizer step was made: the weights are unchanged."""
    plan: dict[str, Any] = Field(default_factory=dict[str, Any])
    metrics: dict[str, Any] = Field(default_factory=dict[str, Any])
    seconds: dict[str, float] = Field(default_factory=dict[str, float])
    """By phase."""
    planned_at: datetime
    recorded_at: datetime | None = None


class EvaluationFigures(View):
    """Scores of the held-out tasks, or of those of one data source."""

    score: float | None = None
    """Mean over all rollouts; a failure counts as `failures.rewards` of the run file says, by default 0."""
    reward: float | None = None
    """Mean over real rewards."""
    rewarded: int = 0
    failed: int = 0
    tasks: int = 0
    samples: int = 1
    """Of each task."""
    spread: float | None = None
    """Standard deviation of a task's samples, as the score counts them, on average over the tasks; null with one."""
    pass_at_k: float | None = None
    """Share of the tasks of which a sample reached `evaluation.pass_threshold`."""
    seconds: float | None = None


class EvaluationView(EvaluationFigures):
    """The evaluation of one policy version on the held-out tasks."""

    version: int
    sources: dict[str, EvaluationFigures] = Field(default_factory=dict[str, EvaluationFigures])
    """By data source, if the tasks name theirs in `data_source`."""


class OpenEvaluation(View):
    """An evaluation that is under way."""

    version: int
    rollouts: Counts


class VersionView(View):
    """A published policy version."""

    policy: str = POLICY
    version: int
    weights_hash: str
    export_path: str
    checkpoint_path: str | None = None
    published_at: datetime
    checkpointed_at: datetime | None = None
    export_bytes: int = 0
    checkpoint_bytes: int = 0
    export_deleted_at: datetime | None = None
    """Deleted by retention: the row is kept, the files are removed."""
    checkpoint_deleted_at: datetime | None = None


class EngineView(View):
    """A vLLM server."""

    engine_id: str
    host: str
    run: str
    policy: str = POLICY
    state: str
    version: int | None = None
    load: int = 0
    pid: int | None = None
    updated_at: datetime


class GpuHostView(View):
    """A GPU worker's host and the run that it serves."""

    host: str
    run: str | None = None
    task_queue: str
    state: str
    detail: str | None = None
    heartbeat: datetime


class WorkerView(View, ProcessFacts):
    """A process that reported itself to the store."""

    worker_id: str
    kind: str
    host: str
    status: str
    rollout_id: str | None = None
    """The newest of its rollouts."""
    attempt_id: str | None = None
    last_heartbeat: datetime
    started_at: datetime
    seconds_ago: float
    """Since its last heartbeat, by the database's clock."""


class ClusterView(View):
    """All workers, GPU hosts and engines."""

    workers: list[WorkerView]
    gpu_hosts: list[GpuHostView]
    engines: list[EngineView]


class RunSummary(View):
    """A run in a list."""

    run: str
    status: str
    phase: str | None = None
    paused: bool = False
    pause_reason: str | None = None
    cancel_requested: datetime | None = None
    """From then on nothing of the run begins until `relight resume` lifts the cancel."""
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """Warnings by name."""
    waiting_for: str | None = None
    error: str | None = None
    agent: str
    algorithm: str
    step: int = 0
    """Newest recorded step."""
    total_steps: int
    reward: float | None = None
    """Mean training reward of the newest step."""
    held_out: float | None = None
    """Held-out score of the newest evaluation."""
    stored_bytes: int = 0
    """Of the exports and checkpoints that it keeps, without those of its parent."""
    created_at: datetime
    finished_at: datetime | None = None


class RunView(RunSummary):
    """A run in full."""

    file: dict[str, Any]
    epoch: int
    hyperparameters: dict[str, Any] = Field(default_factory=dict[str, Any])
    stop_after_step: int | None = None
    concurrency: int | None = None
    train_dataset: str
    eval_dataset: str | None = None
    resources_id: str | None = None
    parent_run: str | None = None
    parent_step: int | None = None
    temporal_address: str | None = None
    """The Temporal server that drives it, or drove it last."""
    temporal_namespace: str | None = None
    drive_again_at: datetime | None = None
    """When it is resumed automatically, after its workflow was lost."""
    replays: bool = False
    """Trains on its parent's rollouts."""
    open_step: StepView | None = None
    """The oldest step that is planned and not recorded."""
    open_evaluation: OpenEvaluation | None = None
    rewards: dict[int, float] = Field(default_factory=dict[int, float])
    """Mean training reward by step."""
    evaluations: list[EvaluationView] = Field(default_factory=list[EvaluationView])
    published: int | None = None
    """Newest published policy version."""
    checkpointed: int | None = None
    """Newest version with a full checkpoint."""
    checkpoints: list[int] = Field(default_factory=list[int])
    """Versions that a fork may start from."""
    engines: list[EngineView] = Field(default_factory=list[EngineView])
    gpu_hosts: list[GpuHostView] = Field(default_factory=list[GpuHostView])

    @property
    def run_file(self) -> RunFile:
        """`file`, parsed.

        Raises:
            ConfigError: this release can't read it.
        """
        return parse_run_file(known_keys(self.file))


class RolloutFilter(BaseModel):
    """Which rollouts of a run a page holds."""

    step: int | None = None
    kind: str | None = None
    status: str | None = None
    failure_class: str | None = None
    cursor: str | None = None
    """The last rollout of the page before."""
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class RolloutSummary(View):
    """A rollout in a list."""

    rollout_id: str
    run: str | None = None
    step: int | None = None
    kind: str
    batch: int | None = None
    group_number: int | None = None
    index_in_group: int | None = None
    fill_up: int = 0
    status: str
    failure_class: str | None = None
    failure: str | None = None
    reward: float | None = None
    attempts: int = 0
    deaths: int = 0
    final_attempt: str | None = None
    """The attempt that counts."""
    inspects: str | None = None
    """The rollout that it repeats, if it is an inspection."""
    created_at: datetime
    ended_at: datetime | None = None


class RewardView(View):
    """A reward and its grader."""

    attempt_id: str
    grader: str
    dimension: str = "primary"
    """Its name, if several were given."""
    primary: bool = True
    """The one that counts, of those that its grader gave."""
    value: float
    feedback: str | None = None
    """Its grader's feedback."""
    created_at: datetime


class AttemptView(View):
    """One try at a rollout, and why it ended."""

    attempt_id: str
    sequence_id: int
    try_number: int
    status: str
    failure_class: str | None = None
    message: str = ""
    error: dict[str, Any] | None = None
    """Type, message, traceback."""
    output: str = ""
    """The end of its output."""
    output_bytes: int = 0
    spans_dropped: int = 0
    """Spans that were dropped: malformed, or over the limit of an attempt."""
    reward: float | None = None
    worker_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    started_at: datetime
    last_heartbeat: datetime | None = None
    ended_at: datetime | None = None
    generations: int = 0


class RolloutView(RolloutSummary):
    """A rollout in full."""

    input: Any = None
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    min_version: int | None = None
    max_version: int | None = None
    tries: list[AttemptView]
    """Its attempts, oldest first."""
    rewards: list[RewardView]
    inspections: list[str] = Field(default_factory=list[str])
    """Rollouts that repeat it, since its batch was closed."""


class GenerationView(View):
    """One choice of one model call."""

    attempt_id: str
    call_number: int
    choice: int
    sequence_id: int | None = None
    """Its number among the spans and calls of its rollout."""
    response_id: str | None = None
    """The answer's `id` as the engine gave it, by which a client's own trace knows it."""
    route: str
    request: Any = None
    response: Any = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    sampling: dict[str, Any]
    seed: int
    engine_id: str
    model: str
    version_start: int | None = None
    version_end: int | None = None
    finish_reason: str | None = None
    complete: bool
    delivered: str
    seconds: float
    created_at: datetime


class AuditView(View):
    """A change to a run, or a refused one."""

    id: int
    rollout_id: str | None = None
    actor: str
    action: str
    before: Any = None
    after: Any = None
    effective_step: int | None = None
    refused: str | None = None
    created_at: datetime


class CommandView(View):
    """A command that came over HTTP, and its result."""

    command_id: str
    run: str
    action: str
    value: dict[str, Any]
    actor: str
    created_at: datetime
    tries: int = 0
    waiting_for: str | None = None
    """Why the last try had no effect."""
    done_at: datetime | None = None
    refused: str | None = None
    result: dict[str, Any] | None = None


class PieceView(View):
    """A piece of an upload that is stored."""

    upload: str
    piece: int
    rows: int


class DatasetView(View):
    """A data set in the store, by name."""

    name: str
    dataset_id: str
    """SHA-256 of its rows."""
    rows: int
    updated_at: datetime
    runs: list[str] = Field(default_factory=list[str])
    """Runs that use it, or are to be started with it."""
    sample: list[Any] = Field(default_factory=list[Any])
    """Its first rows, if they were asked for."""
