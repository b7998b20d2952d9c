"""The commands that operators give to runs: what each takes, as JSON, and the table of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from relight.types import names
from relight.types.rollout import FailureClass
from relight.types.run_file import Section


class Command(Section):
    """Base: who asks is recorded."""

    actor: str = "operator"


class Pause(Command):
    """No attempt, batch, update or evaluation begins; what is under way ends and counts."""

    reason: str = ""


class Resume(Command):
    """Lift a pause."""


class StopAfterStep(Command):
    """Finish the run after a step."""

    step: int | None = Field(default=None, ge=0, lt=2**31)
    """The step under way where none is given."""


class SetHyperparameters(Command):
    """Change values of the run; effective at the first step that is not planned."""

    learning_rate: float | None = Field(default=None, gt=0)
    weight_decay: float | None = Field(default=None, ge=0)
    grad_clip: float | None = Field(default=None, gt=0)
    ppo_epochs: int | None = Field(default=None, ge=1)
    mini_batches: int | None = Field(default=None, ge=1)
    clip_ratio: float | None = Field(default=None, gt=0)
    entropy_coeff: float | None = None
    temperature: float | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    group_size: int | None = Field(default=None, ge=2)
    batch_size: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.changes():
            raise ValueError('name at least one hyper-parameter, for example {"learning_rate": 1e-5}')
        return self

    def changes(self) -> dict[str, Any]:
        """The values that were given."""
        return self.model_dump(exclude_none=True, exclude={"actor"})


class UpdateResources(Command):
    """Give the run other resources: an id, or content that is stored first."""

    resources_id: str | None = None
    resources: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.resources_id is None) == (self.resources is None):
            raise ValueError("give `resources_id` or `resources`")
        return self


class RetryRollout(Command):
    """Try a failed rollout of an open batch again; one of a closed batch is inspected."""

    rollout_id: str


class RetryFailed(Command):
    """Try all failed rollouts of the open batches again, or those of one failure class."""

    failure_class: FailureClass | None = None


class CancelRollout(Command):
    """Stop one rollout; it closes as `cancelled` and trains nothing."""

    rollout_id: str
    reason: str = ""


class SetConcurrency(Command):
    """How many rollouts of the run are under way at most; acts at once."""

    concurrency: int = Field(ge=1, lt=2**31)


class Cancel(Command):
    """End the run: its batches and rollouts are cancelled. `relight resume` drives it again."""

    reason: str = ""


class Fork(Command):
    """A run of its own that starts from a checkpoint of another."""

    from_step: int = Field(ge=0)
    """Start from this step's checkpoint; 0: from the given model."""
    name: str | None = None
    set: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Dotted keys of the run file and their new values."""


class Replay(Command):
    """A run of its own that trains on another's rollouts and samples nothing."""

    from_step: int | None = Field(default=None, ge=0)
    """Start from this step's checkpoint; by default from where the other run began."""
    name: str | None = None
    set: dict[str, Any] = Field(default_factory=dict[str, Any])


class Regrade(Command):
    """Rewards by another grader, beside those that were trained on."""

    grader: str
    step: int | None = Field(default=None, ge=0)


@dataclass(frozen=True)
class CommandSpec:
    """What a command takes, and what it needs to be done."""

    model: type[Command]
    live: bool = True
    """It is an update and a signal of TrainingWorkflow. Else it starts a workflow of its own."""
    by_store: bool = False
    """It is a fact of the run's row, which the workflow reads: the store does it by itself, without Temporal."""


COMMANDS = {
    names.PAUSE: CommandSpec(Pause, by_store=True),
    names.RESUME: CommandSpec(Resume),
    names.STOP_AFTER_STEP: CommandSpec(StopAfterStep, by_store=True),
    names.SET_HYPERPARAMETERS: CommandSpec(SetHyperparameters),
    names.UPDATE_RESOURCES: CommandSpec(UpdateResources),
    names.RETRY_ROLLOUT: CommandSpec(RetryRollout),
    names.RETRY_FAILED: CommandSpec(RetryFailed),
    names.CANCEL_ROLLOUT: CommandSpec(CancelRollout),
    names.SET_CONCURRENCY: CommandSpec(SetConcurrency),
    names.CANCEL: CommandSpec(Cancel, by_store=True),
    "fork": CommandSpec(Fork, live=False),
    "replay": CommandSpec(Replay, live=False),
    "regrade": CommandSpec(Regrade, live=False),
}
"""By name: that in `POST /v1/relight/runs/RUN/NAME`, and for the live ones that of the update and the signal."""
LIVE_COMMANDS = {name: spec for name, spec in COMMANDS.items() if spec.live}
