"""Runs as rows: who drives one, what it was asked to do, and every change with its audit row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from relight.datasets import Tasks
from relight.errors import ConfigError, InvalidRequestError, NotFoundError, SupersededError
from relight.store.changes import apply_change, refused
from relight.store.database import Connection, Database
from relight.store.descent import descend, total_steps
from relight.store.storable import storable_text
from relight.types import names
from relight.types.payloads import BeginInput, ChangeInput, ChangeResult, FinishInput, RunState
from relight.types.run_file import RunFile


def file_hash(file: RunFile) -> str:
    """SHA-256 of a run file with all its defaults."""
    return hashlib.sha256(orjson.dumps(file.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)).hexdigest()


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ."""
    found: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}")
    return found


async def store_dataset(db: Database, tasks: Tasks) -> str:
    """Write a data set once; its id is the hash of its rows."""
    if await db.row("get_dataset", tasks.dataset_id) is None:
        async with db.transaction() as connection:
            rows = [dict(row) for row in tasks.rows]
            await db.execute("insert_dataset", tasks.dataset_id, tasks.source, len(rows), connection=connection)
            await db.execute("insert_tasks", tasks.dataset_id, rows, connection=connection)
    return tasks.dataset_id


async def begin_run(db: Database, begin: BeginInput, train: Tasks, evaluation: Tasks | None) -> RunState:
    """Start a run, or go on with an unfinished one (semantics 17 and 19).

    Raises:
        ConfigError: the name is taken by a finished run or by another file; the message names the differing keys.
        SupersededError: a reset brought back an execution, and somebody else drives the run by now.
    """
    train_id = await store_dataset(db, train)
    eval_id = await store_dataset(db, evaluation) if evaluation else None
    async with db.transaction() as connection:
        run = await db.row("lock_run", begin.run, connection=connection)
        if run is None:
            await _insert_run(db, connection, begin, train_id, eval_id, total_steps(begin.file, len(train.rows)))
            if begin.parent:
                await descend(db, connection, begin, len(train.rows))
        elif _takes_over(dict(run), begin):
            await _take_over(db, connection, dict(run), begin)
        return await _state(db, connection, begin.run)


def _takes_over(run: Mapping[str, Any], begin: BeginInput) -> bool:
    """Whether this makes a new epoch. Not where it began already, and not to go on with what is finished."""
    if run["driver"] == begin.driver:
        return run["status"] not in ("running", "finished")  # reset to its first task, after the run had ended
    if begin.epoch is None:
        _may_go_on(run, begin.file)
        return True
    if run["epoch"] != begin.epoch or run["status"] == "running":
        raise SupersededError(f"run {begin.run} is driven by epoch {run['epoch']} now, not by {begin.epoch}")
    return run["status"] != "finished"


async def _take_over(db: Database, connection: Connection, run: Mapping[str, Any], begin: BeginInput) -> None:
    epoch = await db.value("take_over_run", begin.run, begin.driver, connection=connection)
    await db.execute("requeue_cancelled", begin.run, names.CANCELLED_WORKFLOW, connection=connection)
    before, after = {"status": run["status"], "epoch": run["epoch"]}, {"status": "running", "epoch": epoch}
    step = await db.value("last_recorded_step", begin.run, connection=connection)
    where = (None, begin.actor, "resume", before, after, int(step) + 1, None, f"epoch/{begin.run}/{epoch}")
    await db.execute("insert_audit", begin.run, *where, connection=connection)


async def _insert_run(
    db: Database, connection: Connection, begin: BeginInput, train_id: str, eval_id: str | None, steps: int
) -> None:
    resources_id = f"rs-{begin.run}"
    await db.execute("insert_resources", resources_id, begin.file.resources, connection=connection)
    await db.execute(
        "insert_run",
        begin.run,
        begin.file.model_dump(mode="json"),
        file_hash(begin.file),
        begin.driver,
        steps,
        train_id,
        eval_id,
        resources_id,
        connection=connection,
    )


def _may_go_on(run: Mapping[str, Any], file: RunFile) -> None:
    name = run["run"]
    # Its file as this release reads it: keys that came since have their defaults.
    if file_hash(RunFile.model_validate(run["file"])) != file_hash(file):
        keys = ", ".join(differing_keys(run["file"], file.model_dump(mode="json")))
        raise ConfigError(
            f"run {name} exists with another run file (differing: {keys}); choose another name, or fork {name}"
        )
    if run["status"] == "finished":
        raise ConfigError(f"run {name} is finished; choose another name, or fork it")


async def _state(db: Database, connection: Connection, name: str) -> RunState:
    run = await db.row("get_run", name, connection=connection)
    assert run is not None
    first = int(run["parent_step"] or 0)
    recorded = await db.value("last_recorded_step", name, connection=connection)
    evaluations = await db.fetch("evaluations_of_run", name, connection=connection)
    done = {int(row["step"]): float(row["value"]) for row in evaluations}
    # A last step whose evaluation is missing is entered again: its plan says that it is recorded.
    return RunState(
        run=name,
        epoch=run["epoch"],
        next_step=max(int(recorded), first),
        total_steps=run["total_steps"],
        finished=run["status"] == "finished",
        evaluations=done,
        concurrency=run["concurrency"],
        first_version=first,
        replays=run["replays"],
    )


async def lock_epoch(db: Database, connection: Connection, run: str, epoch: int) -> Mapping[str, Any]:
    """The run's row, locked; an older epoch is refused.

    Raises:
        NotFoundError: no such run.
        SupersededError: the run is driven by a newer epoch.
    """
    row = await db.row("lock_run", run, connection=connection)
    if row is None:
        raise NotFoundError(f"there is no run {run!r}")
    if row["epoch"] != epoch:
        raise SupersededError(f"run {run} is driven by epoch {row['epoch']} now, not by {epoch}")
    return dict(row)


async def lock_running(db: Database, connection: Connection, run: str, epoch: int) -> Mapping[str, Any]:
    """The run's row, locked; an older epoch and a run that has ended are refused.

    Raises:
        SupersededError: somebody else drives it, or it has ended.
    """
    row = await lock_epoch(db, connection, run, epoch)
    if row["status"] != "running":
        raise SupersededError(f"run {run} is {row['status']}")
    return row


async def finish_run(db: Database, finish: FinishInput) -> None:
    """Close a run; closing it twice changes nothing."""
    async with db.transaction() as connection:
        await lock_epoch(db, connection, finish.run, finish.epoch)
        await db.execute("finish_run", finish.run, finish.status, finish.error, connection=connection)
        await _end(db, connection, "cancel_open_inspections", finish.run, "its run ended")
        if finish.status == "cancelled":
            await db.execute("audit_unasked_cancel", finish.run, finish.epoch, connection=connection)
            await _end(db, connection, "cancel_open_rollouts", finish.run, names.CANCELLED_WORKFLOW)


async def _end(db: Database, connection: Connection, which: str, run: str, reason: str) -> None:
    """Close rollouts of a run with their attempts."""
    closed = await db.fetch(which, run, reason, connection=connection)
    ids = [row["rollout_id"] for row in closed]
    await db.execute("close_attempts_of", ids, "cancelled", reason, connection=connection)


async def change_run(db: Database, change: ChangeInput) -> ChangeResult:
    """Do a command: the change and its audit row in one transaction; the same request twice is one change."""
    try:
        return await _change_run(db, change)
    except InvalidRequestError as error:  # a signal may hold any JSON, and Postgres does not
        return await _change_run(db, change, refused(error.message))


async def _change_run(db: Database, change: ChangeInput, known: ChangeResult | None = None) -> ChangeResult:
    async with db.transaction() as connection:
        run = await lock_epoch(db, connection, change.run, change.epoch)
        if audit := await db.row("audit_of_request", change.request_key, connection=connection):
            return ChangeResult(
                accepted=audit["refused"] is None,
                reason=audit["refused"] or "",
                effective_step=audit["effective_step"],
                before=audit["before"],
                after=audit["after"],
            )
        result = known or await apply_change(db, connection, run, change)
        rollout_id = change.value.get("rollout_id") if isinstance(change.value, dict) else None
        await db.execute(
            "insert_audit",
            change.run,
            None if rollout_id is None else storable_text(str(rollout_id)),
            storable_text(change.actor),
            change.action,
            result.before,
            result.after,
            result.effective_step,
            None if result.accepted else storable_text(result.reason),
            change.request_key,
            connection=connection,
        )
        return result
