"""Lineage of runs: a fork starts from a checkpoint of its parent, a replay trains on its parent's rollouts.

Both continue their parent's step numbers: a fork of step 40 makes version 41 next, from the next tasks, so an unchanged
fork does what its parent would have done. The parent does not change; only the version from which a child starts is
kept on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from relight.errors import ConfigError
from relight.store.database import Database, Transaction
from relight.store.runs.rows import RunRow, find_run, get_run
from relight.types.names import POLICY
from relight.types.payloads import BeginInput, Parent
from relight.types.run_file import RunFile

MOST_STEPS = 2**31 - 1


def total_steps(file: RunFile, rows: int) -> int:
    """Steps of a run: as asked for, or whole passes over the data (a last part of a batch is left out).

    Raises:
        ConfigError: there are too many.
    """
    if file.steps is not None:
        return file.steps
    steps = (file.epochs or 1) * max(rows // file.batch_size, 1)
    if steps > MOST_STEPS:
        raise ConfigError(f"epochs: {file.epochs} passes are {steps} steps; {MOST_STEPS} are the most: set fewer")
    return steps


async def inherited_sets(db: Database, begin: BeginInput) -> dict[str, str]:
    """Data sets that a run shares with its parent, as they were when the parent read them."""
    parent = await find_run(db, begin.parent.run) if begin.parent else None
    if parent is None:
        return {}
    before, now = parent.file.data, begin.file.data
    ids = {"train": parent.train_dataset, "evaluation": parent.eval_dataset}
    return {name: f"dataset:{ids[name]}" for name in ids if ids[name] and getattr(before, name) == getattr(now, name)}


def missing_checkpoint(run: str, step: int, deleted_at: datetime | None, there: Sequence[int]) -> str:
    """Why a run can't start from a step, and the steps from which it could."""
    found = ", ".join(map(str, there)) or "none"
    if deleted_at is None:
        return f"run {run} has no checkpoint of step {step}; there is: {found}"
    return (
        f"the checkpoint of step {step} of run {run} was deleted at {deleted_at:%Y-%m-%d %H:%M} UTC, as the run file's "
        f"`checkpoints.keep_*` say; there is: {found}"
    )


async def record_lineage(tx: Transaction, begin: BeginInput, parent: Parent, rows: int) -> None:
    """Record the parent of a new run.

    Raises:
        ConfigError: the parent lacks the checkpoint or steps that the run needs; the message lists those that exist.
    """
    row = await find_run(tx, parent.run)
    if row is None:
        raise ConfigError(f"parent: there is no run {parent.run!r}; `relight runs` lists them")
    if parent.replay:
        await _check_replay(tx, row, begin, parent.step)
    elif total_steps(begin.file, rows) <= parent.step:
        raise ConfigError(f"steps: the run would end at or before step {parent.step}, where it starts; set more steps")
    if parent.step > 0:
        await _start_from(tx, begin.run, parent)
    resources = await _resources(tx, row, begin, parent.step)
    columns = (parent.run, parent.step, parent.replay, *resources)
    await tx.execute("set_parent", begin.run, *columns)
    before, after = {"run": parent.run, "step": parent.step}, {"run": begin.run}
    action = "replay" if parent.replay else "fork"
    audit = (None, begin.actor, action, before, after, parent.step + 1, None, f"{action}/{begin.run}")
    await tx.execute("insert_audit", begin.run, *audit)


async def _start_from(tx: Transaction, run: str, parent: Parent) -> None:
    """The parent's version becomes the child's, under the same number."""
    version = await tx.row("fork_version", parent.run, POLICY, parent.step)
    if version is None:
        found = await tx.fetch("checkpointed_versions", parent.run, POLICY)
        lost = await tx.row("get_version", parent.run, POLICY, parent.step)
        deleted_at = lost["checkpoint_deleted_at"] if lost else None
        there = [int(row["version"]) for row in found]
        raise ConfigError(missing_checkpoint(parent.run, parent.step, deleted_at, there))
    key = (run, POLICY, parent.step)
    columns = ("fence", "weights_hash", "export_path", "checkpoint_path")
    await tx.execute("insert_version", *key, *(version[name] for name in columns))
    columns = ("export_digest", "checkpoint_digest", "export_bytes", "checkpoint_bytes")
    await tx.execute("describe_files", *key, *(version[name] for name in columns))


async def _check_replay(tx: Transaction, parent: RunRow, begin: BeginInput, first: int) -> None:
    name = parent.run
    if parent.replays:
        raise ConfigError(f"run {name} is a replay itself: replay its parent, {parent.parent_run}")
    if first < parent.first_version:
        raise ConfigError(f"run {name} begins after step {parent.parent_step}: replay it from there")
    recorded = int(await tx.value("last_recorded_step", name))
    last = min(recorded, begin.file.steps or recorded)
    if last <= first:
        raise ConfigError(f"run {name} has no recorded step after {first} that could be replayed")
    await tx.execute("set_total_steps", begin.run, last)


async def _resources(tx: Transaction, parent: RunRow, begin: BeginInput, step: int) -> tuple[str | None, int | None]:
    """The run's resources: those of the parent's step, unless the file gives others."""
    if begin.file.resources != parent.file.resources:
        return (await get_run(tx, begin.run)).resources
    row = await tx.row("get_step", parent.run, step)
    return (row["resources_id"], row["resources_version"]) if row and row["resources_id"] else parent.resources
