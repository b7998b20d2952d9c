"""The effect of each command on a run's rows, in one transaction with its audit row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from relight.errors import InvalidRequestError
from relight.store.database import Connection, Database
from relight.store.runs.lifecycle import lock_epoch
from relight.store.storable import storable_text
from relight.types import commands, names
from relight.types.payloads import ChangeInput, ChangeResult, RolloutInput
from relight.types.run_file import Algorithm, RunFile, describe

Run = Mapping[str, Any]
ALGORITHM_KEYS = frozenset(Algorithm.model_fields)


async def change_run(db: Database, change: ChangeInput) -> ChangeResult:
    """Execute a command: the change and its audit row in one transaction; the same request twice is one change."""
    try:
        return await _change_run(db, change)
    except InvalidRequestError as error:  # a signal may hold any JSON, and Postgres does not
        return await _change_run(db, change, refused(error.message))


async def _change_run(db: Database, change: ChangeInput, known: ChangeResult | None = None) -> ChangeResult:
    async with db.transaction() as connection:
        run = await lock_epoch(db, connection, change.run, change.epoch)
        return await write_change(db, connection, run, change, known)


async def done_before(db: Database, request_key: str, connection: Connection | None = None) -> ChangeResult | None:
    """The result of a request whose audit row exists already."""
    audit = await db.row("audit_of_request", request_key, connection=connection)
    if audit is None:
        return None
    return ChangeResult(
        accepted=audit["refused"] is None,
        reason=audit["refused"] or "",
        effective_step=audit["effective_step"],
        before=audit["before"],
        after=audit["after"],
    )


async def write_change(
    db: Database, connection: Connection, run: Mapping[str, Any], change: ChangeInput, known: ChangeResult | None = None
) -> ChangeResult:
    """Execute a command and write its audit row, in the transaction that has locked the run's row."""
    if before := await done_before(db, change.request_key, connection):
        return before
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


def refused(reason: str) -> ChangeResult:
    """Refuse a change and record the reason."""
    return ChangeResult(accepted=False, reason=reason)


async def apply_change(db: Database, connection: Connection, run: Run, change: ChangeInput) -> ChangeResult:
    """Validate a command (signals have not been validated) and execute it."""
    if change.action not in commands.LIVE_COMMANDS:
        return refused(f"there is no command {change.action!r}")
    try:
        command = commands.LIVE_COMMANDS[change.action].model.model_validate(change.value or {})
    except ValidationError as error:
        return refused(describe(error))
    if run["status"] != "running" and not (change.action == names.CANCEL and run["status"] == "interrupted"):
        return refused(f"the run is {run['status']}")
    if run["cancel_requested"]:
        return refused("the run is being cancelled")
    return await _CHANGES[type(command)](db, connection, run, command)


async def _pause(db: Database, connection: Connection, run: Run, command: commands.Pause) -> ChangeResult:
    if run["paused"]:
        return refused("the run is paused already")
    await db.execute("set_paused", run["run"], True, command.reason or None, connection=connection)
    return ChangeResult(accepted=True, before=False, after=True)


async def _resume(db: Database, connection: Connection, run: Run, command: commands.Resume) -> ChangeResult:
    if not run["paused"]:
        return refused("the run is not paused")
    await db.execute("set_paused", run["run"], False, None, connection=connection)
    return ChangeResult(accepted=True, before=True, after=False)


async def _stop(db: Database, connection: Connection, run: Run, command: commands.StopAfterStep) -> ChangeResult:
    planned = await _last_planned(db, connection, run)
    step = planned if command.step is None else command.step
    if step < planned:
        return refused(f"step {planned} is planned already; stop after it or a later one")
    await db.execute("set_stop", run["run"], step, connection=connection)
    return ChangeResult(accepted=True, before=run["stop_after_step"], after=step, effective_step=step)


async def _hyperparameters(
    db: Database, connection: Connection, run: Run, command: commands.SetHyperparameters
) -> ChangeResult:
    if run["replays"] and (fixed := sorted(command.changes().keys() - ALGORITHM_KEYS)):
        return refused(f"{', '.join(fixed)}: a replay samples nothing, so this can't change")
    file = run["file"]
    known = {**file["algorithm"], **file["sampling"], **{key: file[key] for key in ("batch_size", "group_size")}}
    current = {**known, **run["hyperparameters"]}
    changes = {**run["hyperparameters"], **command.changes()}
    try:
        RunFile.model_validate(_changed(file, changes))
    except ValidationError as error:
        return refused(describe(error))
    await db.execute("set_hyperparameters", run["run"], changes, connection=connection)
    effective = await _last_planned(db, connection, run) + 1
    before = {key: current.get(key) for key in command.changes()}
    return ChangeResult(accepted=True, before=before, after=command.changes(), effective_step=effective)


def _changed(file: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with the changed values, by which further steps are planned."""
    own = {section: {k: changes[k] for k in changes if k in file[section]} for section in ("algorithm", "sampling")}
    top = {key: changes[key] for key in changes if key in ("batch_size", "group_size")}
    return {**file, **{section: {**file[section], **values} for section, values in own.items()}, **top}


async def _resources(db: Database, connection: Connection, run: Run, command: commands.UpdateResources) -> ChangeResult:
    effective = await _last_planned(db, connection, run) + 1
    resources_id = command.resources_id or f"rs-{run['run']}-{effective}"
    if command.resources is not None:
        number = 0
        while await db.row("get_resources", resources_id, connection=connection):
            number += 1
            resources_id = f"rs-{run['run']}-{effective}-{number}"
        version = await db.value("insert_resources", resources_id, command.resources, connection=connection)
    elif there := await db.row("get_resources", resources_id, connection=connection):
        version = there["version"]
    else:
        return refused(f"resources_id: there are no resources {resources_id!r}")
    await db.execute("set_run_resources", run["run"], resources_id, version, connection=connection)
    return ChangeResult(accepted=True, before=run["resources_id"], after=resources_id, effective_step=effective)


async def _retry(db: Database, connection: Connection, run: Run, command: commands.RetryRollout) -> ChangeResult:
    rollout = await db.row("get_rollout_outcome", command.rollout_id, connection=connection)
    if rollout is None or rollout["run"] != run["run"]:
        return refused(f"rollout_id: this run has no rollout {command.rollout_id!r}")
    await db.row("lock_step", run["run"], rollout["step"], connection=connection)
    rollout = await db.row("get_rollout_outcome", command.rollout_id, connection=connection) or rollout
    if rollout["counted"] or rollout["inspects"]:
        return await _inspect(db, connection, run, dict(rollout))
    if await db.row("requeue_rollout", command.rollout_id, connection=connection) is None:
        return refused(f"rollout {command.rollout_id} can't be tried again: it is {rollout['status']}")
    before = rollout["failure_class"] or rollout["status"]
    return ChangeResult(accepted=True, before=before, after="requeuing", effective_step=rollout["step"])


async def _inspect(db: Database, connection: Connection, run: Run, rollout: Run) -> ChangeResult:
    """Run a rollout of a closed batch again for inspection; no status, reward or group changes (rule 12)."""
    file, original = run["file"], rollout["inspects"] or rollout["rollout_id"]
    made = await db.row("insert_inspection", original, connection=connection)
    assert made is not None  # its original was read in this transaction
    given = RolloutInput(
        rollout_id=made["rollout_id"],
        queue=names.runner_queue(file["runner_queue"], file["agent"]),
        run=run["run"],
        epoch=run["epoch"],
        step=rollout["step"],
        config=made["config"],
        grader_queue=file.get("grader_queue"),
    )
    workflow_id = names.rollout_workflow_id(made["rollout_id"])
    order = (names.ROLLOUT_WORKFLOW, workflow_id, names.ORCHESTRATOR_QUEUE, given.model_dump(mode="json"))
    await db.execute("insert_order", *order, connection=connection)
    before = rollout["failure_class"] or rollout["status"]
    after = {"inspection": made["rollout_id"], "workflow": workflow_id}
    return ChangeResult(accepted=True, before=before, after=after, effective_step=rollout["step"])


async def _retry_failed(db: Database, connection: Connection, run: Run, command: commands.RetryFailed) -> ChangeResult:
    wanted = command.failure_class.value if command.failure_class else None
    rows = await db.fetch("requeue_failed", run["run"], wanted, connection=connection)
    if not rows:
        return refused(f"no rollout of an open batch has failed{f' as {wanted}' if wanted else ''}")
    step = min(row["step"] for row in rows)
    before = Counter(row["failure_class"] for row in rows)
    return ChangeResult(accepted=True, before=dict(before), after={"requeuing": len(rows)}, effective_step=step)


async def _cancel_rollout(
    db: Database, connection: Connection, run: Run, command: commands.CancelRollout
) -> ChangeResult:
    rollout = await db.row("get_rollout_outcome", command.rollout_id, connection=connection)
    if rollout is None or rollout["run"] != run["run"]:
        return refused(f"rollout_id: this run has no rollout {command.rollout_id!r}")
    why = command.reason or f"cancelled by {command.actor}"
    if await db.row("cancel_rollout", command.rollout_id, why, connection=connection) is None:
        return refused(f"rollout {command.rollout_id} can't be cancelled: it is {rollout['status']}")
    await db.execute("close_attempts_of", [command.rollout_id], "cancelled", why, connection=connection)
    return ChangeResult(accepted=True, before=rollout["status"], after="cancelled", effective_step=rollout["step"])


async def _concurrency(
    db: Database, connection: Connection, run: Run, command: commands.SetConcurrency
) -> ChangeResult:
    before = run["concurrency"] or run["file"].get("concurrency")
    await db.execute("set_run_concurrency", run["run"], command.concurrency, connection=connection)
    step = await _last_planned(db, connection, run)
    return ChangeResult(accepted=True, before=before, after=command.concurrency, effective_step=step)


async def _cancel(db: Database, connection: Connection, run: Run, command: commands.Cancel) -> ChangeResult:
    """Record a cancel: from now on nothing of the run begins; the workflow that drives it reads the cancel from this
    row.
    """
    await db.execute("request_cancel", run["run"], connection=connection)
    step = await _last_planned(db, connection, run)
    after = {"status": "cancelled", "epoch": run["epoch"], "reason": command.reason}
    return ChangeResult(accepted=True, before=run["status"], after=after, effective_step=step)


async def _last_planned(db: Database, connection: Connection, run: Run) -> int:
    row = await db.row("last_planned_step", run["run"], connection=connection)
    return int(row["step"]) if row else int(run["parent_step"] or 0)


_CHANGES: dict[type[commands.Command], Callable[[Database, Connection, Run, Any], Awaitable[ChangeResult]]] = {
    commands.Pause: _pause,
    commands.Resume: _resume,
    commands.StopAfterStep: _stop,
    commands.SetHyperparameters: _hyperparameters,
    commands.UpdateResources: _resources,
    commands.RetryRollout: _retry,
    commands.RetryFailed: _retry_failed,
    commands.CancelRollout: _cancel_rollout,
    commands.SetConcurrency: _concurrency,
    commands.Cancel: _cancel,
}
