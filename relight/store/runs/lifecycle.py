"""Runs as rows: how each begins, which workflow drives it, and how it ends."""

from __future__ import annotations

import orjson

from relight.datasets import Tasks, is_stored
from relight.errors import (
    CancelRequestedError,
    ConfigError,
    OverloadedError,
    SupersededError,
)
from relight.store.database import Database, Transaction
from relight.store.runs.lineage import record_lineage, total_steps
from relight.store.runs.rows import RunRow, find_run, get_run
from relight.types import names
from relight.types.payloads import BeginInput, FinishInput, RunState, kept_evaluations
from relight.types.run_file_differences import require_same_file

RUN_ENDED = "its run ended"
"""Why inspections and rollouts from outside are cancelled, which are not opened again with their run."""


async def store_dataset(db: Database, tasks: Tasks) -> str:
    """Write a data set once; its id is the hash of its rows. One that was in the store already is only named."""
    if not is_stored(tasks.source) and await db.row("get_dataset", tasks.dataset_id) is None:
        async with db.transaction() as tx:
            await tx.execute("insert_dataset", tasks.dataset_id, tasks.source, len(tasks.rows))
            rows = [orjson.dumps(row).decode() for row in tasks.rows]
            await tx.execute("insert_tasks", tasks.dataset_id, rows)
    return tasks.dataset_id


async def begin_run(db: Database, begin: BeginInput, train: Tasks, evaluation: Tasks | None) -> RunState:
    """Start a run, or continue an unfinished one (rules 17 and 19).

    Raises:
        ConfigError: the name is that of a finished run or of another file; the message names the differing keys.
        SupersededError: this execution was reset, and another workflow drives the run by now.
        CancelRequestedError: the run, or the request for it, was cancelled, and not resumed after that.
        OverloadedError: one of its data sets was removed meanwhile; a retry reports it as missing.
    """
    train_id = await store_dataset(db, train)
    eval_id = await store_dataset(db, evaluation) if evaluation else None
    async with db.transaction() as tx:
        run = await find_run(tx, begin.run, lock=True)
        if run is None:
            await _hold_request(tx, begin)
            await _hold_datasets(tx, {train_id, eval_id or train_id})
            await _insert_run(tx, begin, train_id, eval_id, total_steps(begin.file, len(train.rows)))
            if begin.parent:
                await record_lineage(tx, begin, begin.parent, len(train.rows))
        elif _takes_over(run, begin):
            await _take_over(tx, run, begin)
        return await _state(tx, begin.run)


async def _hold_request(tx: Transaction, begin: BeginInput) -> None:
    """Lock the request for the run and check that it stands; a concurrent cancel waits until the run has begun, and
    cancels the run.
    """
    key, _, asked_at = (begin.asked or "").rpartition("@")
    row = await tx.row("lock_request", key) if key else None
    if row is not None and (row["refused"] is not None or row["created_at"].isoformat() != asked_at):
        reason = row["refused"] or "asked for anew meanwhile"
        raise CancelRequestedError(f"run {begin.run} does not begin: {reason}")


async def _hold_datasets(tx: Transaction, ids: set[str]) -> None:
    if await tx.value("hold_datasets", list(ids)) < len(ids):
        raise OverloadedError("a data set of the run was removed while the run began")


def _takes_over(run: RunRow, begin: BeginInput) -> bool:
    """Whether this makes a new epoch: not if this execution began already, and not if the run is finished."""
    if run.cancel_requested and run.cancel_requested != begin.lifts:
        raise CancelRequestedError(f"run {begin.run} was cancelled; `relight resume {begin.run}` drives it again")
    if run.driver == begin.driver:
        return run.status not in ("running", "finished")  # reset to its first task, after the run had ended
    if begin.epoch is None:
        require_same_file(begin.run, run.file, begin.file)
        if run.status == "finished":
            raise ConfigError(f"run {begin.run} is finished; choose another name, or fork it")
        return True
    if run.epoch != begin.epoch or run.status == "running":
        raise SupersededError(f"run {begin.run} is driven by epoch {run.epoch} now, not by {begin.epoch}")
    return run.status != "finished"


async def _take_over(tx: Transaction, run: RunRow, begin: BeginInput) -> None:
    where = (begin.temporal_address, begin.temporal_namespace)
    epoch = await tx.value("take_over_run", begin.run, begin.driver, *where)
    await tx.execute("requeue_cancelled", begin.run, names.CANCELLED_WORKFLOW)
    before, after = {"status": run.status, "epoch": run.epoch}, {"status": "running", "epoch": epoch}
    if run.paused:  # it still is: a resume has yet to lift that
        before["paused"] = True
    step = await tx.value("last_recorded_step", begin.run)
    columns = (None, begin.actor, "resume", before, after, int(step) + 1, None, f"epoch/{begin.run}/{epoch}")
    await tx.execute("insert_audit", begin.run, *columns)


async def _insert_run(tx: Transaction, begin: BeginInput, train_id: str, eval_id: str | None, steps: int) -> None:
    resources_id, file = f"rs-{begin.run}", begin.file.model_dump(mode="json")
    version = await tx.value("insert_resources", resources_id, begin.file.resources)
    await tx.execute(
        "insert_run",
        begin.run,
        file,
        begin.driver,
        steps,
        train_id,
        eval_id,
        resources_id,
        version,
        begin.temporal_address,
        begin.temporal_namespace,
    )


async def _state(tx: Transaction, name: str) -> RunState:
    run = await get_run(tx, name)
    recorded = await tx.value("last_recorded_step", name)
    evaluations = await tx.fetch("evaluations_of_run", name)
    done = {int(row["step"]): float(row["value"]) for row in evaluations}
    evaluated = await tx.value("newest_evaluation", name)
    # A last step whose evaluation is missing is entered again: its plan says that it is recorded.
    return RunState.taken_from(
        run,
        next_step=max(int(recorded), run.first_version),
        finished=run.status == "finished",
        evaluated=-1 if evaluated is None else int(evaluated),
        evaluations=kept_evaluations(done),
    )


async def lock_epoch(tx: Transaction, run: str, epoch: int) -> RunRow:
    """The run's row, locked; an older epoch is refused.

    Raises:
        NotFoundError: no such run.
        SupersededError: the run is driven by a newer epoch.
    """
    row = await get_run(tx, run, lock=True)
    if row.epoch != epoch:
        raise SupersededError(f"run {run} is driven by epoch {row.epoch} now, not by {epoch}")
    return row


async def lock_wanted(tx: Transaction, run: str, epoch: int) -> RunRow:
    """Lock the run's row; an older epoch and a cancelled run are refused.

    Raises:
        SupersededError: the run has a newer epoch.
        CancelRequestedError: it was cancelled.
    """
    row = await lock_epoch(tx, run, epoch)
    if row.cancel_requested:
        raise CancelRequestedError(f"run {run} was cancelled")
    return row


async def lock_running(tx: Transaction, run: str, epoch: int) -> RunRow:
    """Lock the run's row; an older epoch, a cancelled run and one that has ended are refused.

    Raises:
        SupersededError: another workflow drives it, or it has ended.
        CancelRequestedError: it was cancelled.
    """
    row = await lock_wanted(tx, run, epoch)
    if row.status != "running":
        raise SupersededError(f"run {run} is {row.status}")
    return row


async def finish_run(db: Database, finish: FinishInput) -> None:
    """Close a run; closing it twice changes nothing. A run that fails while it is being cancelled ends as cancelled.

    Raises:
        CancelRequestedError: it can't finish successfully, since it was cancelled.
    """
    async with db.transaction() as tx:
        run = await lock_epoch(tx, finish.run, finish.epoch)
        if run.status != "running" and (run.status, finish.status) != ("interrupted", "cancelled"):
            return
        if run.cancel_requested and finish.status == "finished":
            raise CancelRequestedError(f"run {finish.run} was cancelled")
        await close_run(tx, run, "cancelled" if run.cancel_requested else finish.status, finish.error)


async def close_run(tx: Transaction, run: RunRow, status: str, error: str | None = None) -> None:
    """Write that a run has ended, and close its open rollouts."""
    name = run.run
    await tx.execute("finish_run", name, status, error)
    await _end(tx, "cancel_open_inspections", name, RUN_ENDED)
    await tx.execute("end_outside_rollouts", name, RUN_ENDED)
    if status == "cancelled":
        await tx.execute("audit_unasked_cancel", name, run.epoch)
        await _end(tx, "cancel_open_rollouts", name, names.CANCELLED_WORKFLOW)


async def _end(tx: Transaction, which: str, run: str, reason: str) -> None:
    """Close rollouts of a run with their attempts."""
    closed = await tx.fetch(which, run, reason)
    ids = [row["rollout_id"] for row in closed]
    await tx.execute("close_attempts_of", ids, "cancelled", reason)
