"""The effect of each command on a run's rows, in one transaction with its audit row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from relight.errors import InvalidRequestError
from relight.store.database import Database, Queries, Transaction
from relight.store.runs.lifecycle import lock_epoch
from relight.store.runs.rows import RunRow
from relight.store.storable import storable_text
from relight.store.training.plans import ALGORITHM_KEYS
from relight.types import commands, names
from relight.types.payloads import ChangeInput, ChangeResult, RolloutInput
from relight.types.run_file_errors import describe


async def change_run(db: Database, change: ChangeInput) -> ChangeResult:
    """Execute a command: the change and its audit row in one transaction; the same request twice is one change."""
    try:
        return await _change_run(db, change)
    except InvalidRequestError as error:  # a signal may hold any JSON, and Postgres does not
        return await _change_run(db, change, refused(error.message))


async def _change_run(db: Database, change: ChangeInput, known: ChangeResult | None = None) -> ChangeResult:
    async with db.transaction() as tx:
        run = await lock_epoch(tx, change.run, change.epoch)
        return await write_change(tx, run, change, known)


async def done_before(db: Queries, request_key: str) -> ChangeResult | None:
    """The result of a request whose audit row exists already."""
    audit = await db.row("audit_of_request", request_key)
    if audit is None:
        return None
    reason = audit["refused"]
    return ChangeResult.model_validate({**dict(audit), "accepted": reason is None, "reason": reason or ""})


async def write_change(
    tx: Transaction, run: RunRow, change: ChangeInput, known: ChangeResult | None = None
) -> ChangeResult:
    """Execute a command and write its audit row, in the transaction that has locked the run's row."""
    if before := await done_before(tx, change.request_key):
        return before
    result = known or await apply_change(tx, run, change)
    rollout_id = change.value.get("rollout_id") if isinstance(change.value, dict) else None
    await tx.execute(
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
    )
    return result


def refused(reason: str) -> ChangeResult:
    """Refuse a change and record the reason."""
    return ChangeResult(accepted=False, reason=reason)


async def apply_change(tx: Transaction, run: RunRow, change: ChangeInput) -> ChangeResult:
    """Validate a command (signals have not been validated) and execute it."""
    if change.action not in commands.LIVE_COMMANDS:
        return refused(f"there is no command {change.action!r}")
    try:
        command = commands.LIVE_COMMANDS[change.action].model.model_validate(change.value or {})
    except ValidationError as error:
        return refused(describe(error))
    if run.status != "running" and not (change.action == names.CANCEL and run.status == "interrupted"):
        return refused(f"the run is {run.status}")
    if run.cancel_requested:
        return refused("the run is being cancelled")
    return await _CHANGES[type(command)](tx, run, command)


async def _pause(tx: Transaction, run: RunRow, command: commands.Pause) -> ChangeResult:
    if run.paused:
        return refused("the run is paused already")
    await tx.execute("set_paused", run.run, True, command.reason or None)
    return ChangeResult(accepted=True, before=False, after=True)


async def _resume(tx: Transaction, run: RunRow, command: commands.Resume) -> ChangeResult:
    if not run.paused:
        return refused("the run is not paused")
    await tx.execute("set_paused", run.run, False, None)
    return ChangeResult(accepted=True, before=True, after=False)


async def _stop(tx: Transaction, run: RunRow, command: commands.StopAfterStep) -> ChangeResult:
    planned = await _last_planned(tx, run)
    step = planned if command.step is None else command.step
    if step < planned:
        return refused(f"step {planned} is planned already; stop after it or a later one")
    await tx.execute("set_stop", run.run, step)
    return ChangeResult(accepted=True, before=run.stop_after_step, after=step, effective_step=step)


async def _hyperparameters(tx: Transaction, run: RunRow, command: commands.SetHyperparameters) -> ChangeResult:
    if run.replays and (fixed := sorted(command.changes().keys() - ALGORITHM_KEYS)):
        return refused(f"{', '.join(fixed)}: a replay samples nothing, so this can't change")
    file = run.file.model_dump(mode="json")
    known = {**file["algorithm"], **file["sampling"], **{key: file[key] for key in ("batch_size", "group_size")}}
    current = {**known, **run.hyperparameters}
    changes = {**run.hyperparameters, **command.changes()}
    try:
        type(run.file).model_validate(_changed(file, changes))
    except ValidationError as error:
        return refused(describe(error))
    await tx.execute("set_hyperparameters", run.run, changes)
    effective = await _last_planned(tx, run) + 1
    before = {key: current.get(key) for key in command.changes()}
    return ChangeResult(accepted=True, before=before, after=command.changes(), effective_step=effective)


def _changed(file: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with the changed values, by which further steps are planned."""
    own = {section: {k: changes[k] for k in changes if k in file[section]} for section in ("algorithm", "sampling")}
    top = {key: changes[key] for key in changes if key in ("batch_size", "group_size")}
    return {**file, **{section: {**file[section], **values} for section, values in own.items()}, **top}


async def _resources(tx: Transaction, run: RunRow, command: commands.UpdateResources) -> ChangeResult:
    effective = await _last_planned(tx, run) + 1
    resources_id = command.resources_id or f"rs-{run.run}-{effective}"
    if command.resources is not None:
        number = 0
        while await tx.row("get_resources", resources_id):
            number += 1
            resources_id = f"rs-{run.run}-{effective}-{number}"
        version = await tx.value("insert_resources", resources_id, command.resources)
    elif there := await tx.row("get_resources", resources_id):
        version = there["version"]
    else:
        return refused(f"resources_id: there are no resources {resources_id!r}")
    await tx.execute("set_run_resources", run.run, resources_id, version)
    return ChangeResult(accepted=True, before=run.resources_id, after=resources_id, effective_step=effective)


async def _retry(tx: Transaction, run: RunRow, command: commands.RetryRollout) -> ChangeResult:
    rollout = await tx.row("get_rollout_outcome", command.rollout_id)
    if rollout is None or rollout["run"] != run.run:
        return refused(f"rollout_id: this run has no rollout {command.rollout_id!r}")
    if rollout["kind"] == "external":
        return refused(
            f"rollout_id: {command.rollout_id} came from outside, where a run retries nothing: enqueue it again"
        )
    await tx.row("lock_step", run.run, rollout["step"])
    rollout = await tx.row("get_rollout_outcome", command.rollout_id) or rollout
    if rollout["final_attempt"] or rollout["inspects"]:
        return await _inspect(tx, run, dict(rollout))
    if await tx.row("requeue_rollout", command.rollout_id) is None:
        return refused(f"rollout {command.rollout_id} can't be tried again: it is {rollout['status']}")
    before = rollout["failure_class"] or rollout["status"]
    return ChangeResult(accepted=True, before=before, after="requeuing", effective_step=rollout["step"])


async def _inspect(tx: Transaction, run: RunRow, rollout: Mapping[str, Any]) -> ChangeResult:
    """Run a rollout of a closed batch again for inspection; no status, reward or group changes (rule 12)."""
    original = rollout["inspects"] or rollout["rollout_id"]
    made = await tx.one("insert_inspection", original)  # which was read in this transaction
    given = RolloutInput(
        rollout_id=made["rollout_id"],
        queue=names.runner_queue(run.file.runner_queue, run.file.agent),
        run=run.run,
        epoch=run.epoch,
        step=rollout["step"],
        config=made["config"],
        grader_queue=run.file.grader_queue,
    )
    workflow_id = names.rollout_workflow_id(made["rollout_id"])
    order = (names.ROLLOUT_WORKFLOW, workflow_id, names.ORCHESTRATOR_QUEUE, given.model_dump(mode="json"))
    await tx.execute("insert_order", *order)
    before = rollout["failure_class"] or rollout["status"]
    after = {"inspection": made["rollout_id"], "workflow": workflow_id}
    return ChangeResult(accepted=True, before=before, after=after, effective_step=rollout["step"])


async def _retry_failed(tx: Transaction, run: RunRow, command: commands.RetryFailed) -> ChangeResult:
    wanted = command.failure_class.value if command.failure_class else None
    rows = await tx.fetch("requeue_failed", run.run, wanted)
    if not rows:
        return refused(f"no rollout of an open batch has failed{f' as {wanted}' if wanted else ''}")
    step = min(row["step"] for row in rows)
    before = Counter(row["failure_class"] for row in rows)
    return ChangeResult(accepted=True, before=dict(before), after={"requeuing": len(rows)}, effective_step=step)


async def _cancel_rollout(tx: Transaction, run: RunRow, command: commands.CancelRollout) -> ChangeResult:
    rollout = await tx.row("get_rollout_outcome", command.rollout_id)
    if rollout is None or rollout["run"] != run.run:
        return refused(f"rollout_id: this run has no rollout {command.rollout_id!r}")
    why = command.reason or f"cancelled by {command.actor}"
    if await tx.row("cancel_rollout", command.rollout_id, why) is None:
        return refused(f"rollout {command.rollout_id} can't be cancelled: it is {rollout['status']}")
    await tx.execute("close_attempts_of", [command.rollout_id], "cancelled", why)
    return ChangeResult(accepted=True, before=rollout["status"], after="cancelled", effective_step=rollout["step"])


async def _concurrency(tx: Transaction, run: RunRow, command: commands.SetConcurrency) -> ChangeResult:
    before = run.concurrency or run.file.concurrency
    await tx.execute("set_run_concurrency", run.run, command.concurrency)
    step = await _last_planned(tx, run)
    return ChangeResult(accepted=True, before=before, after=command.concurrency, effective_step=step)


async def _cancel(tx: Transaction, run: RunRow, command: commands.Cancel) -> ChangeResult:
    """Record a cancel: from now on nothing of the run begins; the workflow that drives it reads the cancel from this
    row.
    """
    await tx.execute("request_cancel", run.run)
    step = await _last_planned(tx, run)
    after = {"status": "cancelled", "epoch": run.epoch, "reason": command.reason}
    return ChangeResult(accepted=True, before=run.status, after=after, effective_step=step)


async def _last_planned(tx: Transaction, run: RunRow) -> int:
    row = await tx.row("last_planned_step", run.run)
    return int(row["step"]) if row else run.first_version


_CHANGES: dict[type[commands.Command], Callable[[Transaction, RunRow, Any], Awaitable[ChangeResult]]] = {
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
