"""What one can see of runs: the answers of the store's read-only routes.

Readers ignore keys that they don't know, so an older command line reads a newer service.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

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
    """How the rollouts of a step or an evaluation stand."""

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


class StepView(View):
    """One step of a run."""

    step: int
    status: str
    rollouts: Counts = Field(default_factory=Counts)
    reward: float | None = None
    unchanged: bool = False
    """Every group was dropped: the weights stayed."""
    plan: dict[str, Any] = Field(default_factory=dict[str, Any])
    metrics: dict[str, Any] = Field(default_factory=dict[str, Any])
    seconds: dict[str, float] = Field(default_factory=dict[str, float])
    """By phase."""
    planned_at: datetime
    recorded_at: datetime | None = None


class EvaluationView(View):
    """The held-out tasks, played by one policy version."""

    version: int
    reward: float | None = None
    """Mean over real rewards."""
    rewarded: int = 0
    failed: int = 0
    seconds: float | None = None


class OpenEvaluation(View):
    """An evaluation that is under way."""

    version: int
    rollouts: Counts


class VersionView(View):
    """A published policy version."""

    version: int
    weights_hash: str
    export_path: str
    checkpoint_path: str | None = None
    published_at: datetime
    checkpointed_at: datetime | None = None
    export_bytes: int = 0
    checkpoint_bytes: int = 0
    export_deleted_at: datetime | None = None
    """By retention: the row stays, the files are gone."""
    checkpoint_deleted_at: datetime | None = None


class EngineView(View):
    """A vLLM server."""

    engine_id: str
    host: str
    run: str
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


class WorkerView(View):
    """A process that announced itself."""

    worker_id: str
    kind: str
    host: str
    pid: int | None = None
    serves: list[str] = Field(default_factory=list[str])
    status: str
    last_heartbeat: datetime
    started_at: datetime
    seconds_ago: float
    """Since its last heartbeat, by the database's clock."""


class ClusterView(View):
    """Everything that runs, whichever run it serves."""

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
    warnings: dict[str, str] = Field(default_factory=dict[str, str])
    """What it should know and does not stop it, by name."""
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
    """Held-out reward of the newest evaluation."""
    stored_bytes: int = 0
    """Of the exports and checkpoints that it keeps; those of a parent are the parent's."""
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
    counted: str | None = None
    """The attempt that counts."""
    inspects: str | None = None
    """The rollout that it repeats, where it is an inspection."""
    created_at: datetime
    ended_at: datetime | None = None


class RewardView(View):
    """A reward and who gave it."""

    attempt_id: str
    grader: str
    value: float
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
    """Tail of what it printed."""
    output_bytes: int = 0
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
    """A command that came over HTTP, and what came of it."""

    command_id: str
    run: str
    action: str
    value: dict[str, Any]
    actor: str
    created_at: datetime
    tries: int = 0
    waiting_for: str | None = None
    """Why the last try did nothing."""
    done_at: datetime | None = None
    refused: str | None = None
    result: dict[str, Any] | None = None
