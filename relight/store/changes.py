"""What each command does to a run's rows. Called inside the transaction that writes the audit row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from relight.store.database import Connection, Database
from relight.types import commands, names
from relight.types.payloads import ChangeInput, ChangeResult, RolloutInput
from relight.types.run_file import Algorithm, check_step_size, describe

Run = Mapping[str, Any]
ALGORITHM_KEYS = frozenset(Algorithm.model_fields)


def refused(reason: str) -> ChangeResult:
    """Nothing changes; the reason is kept."""
    return ChangeResult(accepted=False, reason=reason)


async def apply_change(db: Database, connection: Connection, run: Run, change: ChangeInput) -> ChangeResult:
    """Validate a command once more (signals were not) and do it."""
    if change.action not in _ACTIONS:
        return refused(f"there is no command {change.action!r}")
    try:
        command = commands.COMMANDS[change.action].model_validate(change.value or {})
    except ValidationError as error:
        return refused(describe(error))
    if run["status"] != "running":
        return refused(f"the run is {run['status']}")
    return await _ACTIONS[change.action](db, connection, run, command)


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
    wanted = {**current, **command.changes()}
    if wanted["mini_batches"] > wanted["batch_size"]:
        return refused(f"mini_batches: {wanted['mini_batches']} is more than the batch size, {wanted['batch_size']}")
    try:
        check_step_size(wanted["group_size"], wanted["batch_size"])
    except ValueError as error:
        return refused(str(error))
    changes = {**run["hyperparameters"], **command.changes()}
    await db.execute("set_hyperparameters", run["run"], changes, connection=connection)
    effective = await _last_planned(db, connection, run) + 1
    before = {key: current.get(key) for key in command.changes()}
    return ChangeResult(accepted=True, before=before, after=command.changes(), effective_step=effective)


async def _resources(db: Database, connection: Connection, run: Run, command: commands.UpdateResources) -> ChangeResult:
    effective = await _last_planned(db, connection, run) + 1
    resources_id = command.resources_id or f"rs-{run['run']}-{effective}"
    if command.resources is not None:
        number = 0
        while await db.row("get_resources", resources_id, connection=connection):
            number += 1
            resources_id = f"rs-{run['run']}-{effective}-{number}"
        await db.execute("insert_resources", resources_id, command.resources, connection=connection)
    elif await db.row("get_resources", resources_id, connection=connection) is None:
        return refused(f"resources_id: there are no resources {resources_id!r}")
    await db.execute("set_run_resources", run["run"], resources_id, connection=connection)
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
    """Play a rollout of a closed batch again, for people to look at: nothing that counts changes (semantics 12)."""
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
    step = await _last_planned(db, connection, run)
    after = {"status": "cancelled", "epoch": run["epoch"], "reason": command.reason}
    return ChangeResult(accepted=True, before=run["status"], after=after, effective_step=step)


async def _last_planned(db: Database, connection: Connection, run: Run) -> int:
    row = await db.row("last_planned_step", run["run"], connection=connection)
    return int(row["step"]) if row else int(run["parent_step"] or 0)


_ACTIONS: dict[str, Callable[[Database, Connection, Run, Any], Awaitable[ChangeResult]]] = {
    "pause": _pause,
    "resume": _resume,
    "stop_after_step": _stop,
    "set_hyperparameters": _hyperparameters,
    "update_resources": _resources,
    "retry_rollout": _retry,
    "retry_failed": _retry_failed,
    "cancel_rollout": _cancel_rollout,
    "set_concurrency": _concurrency,
    "cancel": _cancel,
}
