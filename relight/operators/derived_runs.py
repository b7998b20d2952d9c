"""The run file of a fork or a replay: its parent's, as the step was done, with the keys that are changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relight.errors import ConfigError
from relight.store.runs.lineage import missing_checkpoint
from relight.types import commands
from relight.types.payloads import Parent
from relight.types.run_file import RunFile, known_keys, parse_run_file
from relight.types.views import RunView, VersionView

REPLAYABLE = (
    "algorithm",
    "checkpoint_every",
    "checkpoints",
    "data.evaluation",
    "evaluation",
    "failures",
    "grader",
    "model",
    "seed",
)
REPLAYABLE_TOO = ("steps", "verl", "vllm")
FROM_THE_PLAN = ("algorithm", "sampling", "group_size", "batch_size")
"""Keys that can change while a run is live, so that a step's plan is more recent than the run's file."""


@dataclass(frozen=True)
class Derived:
    """The input of a run with a parent."""

    file: RunFile
    parent: Parent


def derive(
    parent: RunView,
    plan: Mapping[str, Any] | None,
    versions: Sequence[VersionView],
    command: commands.Fork | commands.Replay,
) -> Derived:
    """The file of a run that is derived from `parent`.

    Args:
        plan: of the step that the run starts from; None at step 0.
        versions: of the parent.

    Raises:
        ConfigError: it names the key that can't be changed, or the steps that have checkpoints.
    """
    replay = isinstance(command, commands.Replay)
    first = (parent.parent_step or 0) if command.from_step is None else command.from_step
    _check_start(parent, versions, first)
    _check_keys(command, first)
    data = copy.deepcopy(known_keys(parent.file))
    if plan is not None and not replay:
        data.update({key: plan[key] for key in FROM_THE_PLAN if key in plan})
    for key, value in command.set.items():
        set_key(data, key, value)
    if "steps" in command.set or "epochs" in command.set:
        data["epochs" if "steps" in command.set else "steps"] = None
    file = parse_run_file(data)
    if file.steps is not None and file.steps <= first:
        raise ConfigError(f"steps: {file.steps} steps end at or before step {first}, where the run starts; set more")
    return Derived(file, Parent(run=parent.run, step=first, replay=replay))


def set_key(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key.

    Raises:
        ConfigError: the part before a dot is not a section.
    """
    *parents, last = key.split(".")
    section = data
    for depth, name in enumerate(parents, start=1):
        below = section.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{key}: {'.'.join(parents[:depth])} is not a section but {below!r}")
        section = below
    section[last] = value


def _check_start(parent: RunView, versions: Sequence[VersionView], first: int) -> None:
    there = [version.version for version in versions if version.checkpoint_path]
    if first and first not in there:
        deleted = next((version.checkpoint_deleted_at for version in versions if version.version == first), None)
        raise ConfigError(missing_checkpoint(parent.run, first, deleted, there))


def _check_keys(command: commands.Fork | commands.Replay, first: int) -> None:
    if first and "model" in command.set:
        raise ConfigError(
            f"model: the run starts from the checkpoint of step {first}; another model needs --from-step 0"
        )
    if not isinstance(command, commands.Replay):
        return
    allowed = (*REPLAYABLE, *REPLAYABLE_TOO)
    for key in command.set:
        if not any(key == name or key.startswith(f"{name}.") for name in allowed):
            raise ConfigError(
                f"{key}: a replay samples nothing, so this would change nothing; it takes {', '.join(allowed)}"
            )
