"""Rows of `runs`, read here and typed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any

from relight.errors import NotFoundError
from relight.store.database import Queries
from relight.types.run_file import RunFile, parse_run_file


@dataclass(frozen=True)
class RunRow:
    """A row of `runs`: the columns that are read, under their names."""

    run: str
    status: str
    epoch: int
    driver: str
    total_steps: int
    train_dataset: str
    eval_dataset: str | None
    resources_id: str | None
    resources_version: int | None
    parent_run: str | None
    parent_step: int | None
    replays: bool
    hyperparameters: dict[str, Any]
    concurrency: int | None
    paused: bool
    pause_reason: str | None
    stop_after_step: int | None
    cancel_requested: datetime | None
    warnings: dict[str, str]
    temporal_address: str | None
    temporal_namespace: str | None
    stored_file: dict[str, Any]
    """The column `file`."""

    @cached_property
    def file(self) -> RunFile:
        """The run file. Parsed when it is first read: a run of another release can be cancelled without.

        Raises:
            ConfigError: this release can't read it.
        """
        return parse_run_file(self.stored_file)

    @property
    def resources(self) -> tuple[str | None, int | None]:
        """Id and version of the resources that its next rollouts have."""
        return self.resources_id, self.resources_version

    @property
    def first_version(self) -> int:
        """The policy version that the run starts from: its parent's, or 0, the given model."""
        return self.parent_step or 0


_COLUMNS = {field.name: "file" if field.name == "stored_file" else field.name for field in fields(RunRow)}


def _run_row(row: Any) -> RunRow:
    return RunRow(**{name: row[column] for name, column in _COLUMNS.items()})


async def find_run(db: Queries, run: str, *, lock: bool = False) -> RunRow | None:
    """A run's row, or None where there is none; locked until the transaction ends, if asked."""
    row = await db.row("lock_run" if lock else "get_run", run)
    return None if row is None else _run_row(row)


async def get_run(db: Queries, run: str, *, lock: bool = False) -> RunRow:
    """A run's row; locked until the transaction ends, if asked.

    Raises:
        NotFoundError: there is no such run.
    """
    found = await find_run(db, run, lock=lock)
    if found is None:
        raise NotFoundError(f"there is no run {run!r}; `relight runs` lists them")
    return found


async def watched_runs(db: Queries) -> list[RunRow]:
    """Runs that the reconciler checks: those that should have a workflow, and those that may need another."""
    return [_run_row(row) for row in await db.fetch("watched_runs")]
