"""Signals and cancels that an accepted command sends to live workflows, once its row is committed.

They are sent after every try of `change_run`, also where the row was there already, so that a process that dies between
the two loses nothing. Each may be sent twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from relight.faults import FaultPoint, fault_point
from relight.operators.run_workflows import execution_of
from relight.store.database import Database
from relight.store.runs.rows import find_run
from relight.types import names
from relight.types.concurrency_shares import share
from relight.types.payloads import ChangeInput, ChangeResult, Notice


async def signal_workflows(
    db: Database, client: Client, change: ChangeInput, result: ChangeResult, execution: str
) -> None:
    """Signal the workflows that a command concerns; `execution` is that of the run's workflow which did it."""
    if not result.accepted:
        return
    if change.action == names.CANCEL:
        await cancel_workflow(client, change.run, execution)
    elif change.action == names.CANCEL_ROLLOUT:
        rollout_id = str(change.value["rollout_id"])
        handle = client.get_workflow_handle(names.rollout_workflow_id(rollout_id))
        await _unless_gone(handle.signal(names.CANCEL, f"cancelled by {change.actor}"))
    elif change.action == names.SET_CONCURRENCY:
        await _signal_batches(db, client, change.run, names.SET_CONCURRENCY, int(result.after))
    elif change.action in (names.RETRY_ROLLOUT, names.RETRY_FAILED, names.RESUME):
        await _signal_batches(db, client, change.run, names.ADD_ROLLOUTS, None)


async def cancel_workflow(client: Client, run: str, execution: str) -> None:
    """Cancel this execution of a run's workflow, never a later one that drives the run by now."""
    fault_point(FaultPoint.CANCEL_TO_SEND)
    await _unless_gone(client.get_workflow_handle(names.train_id(run), run_id=execution).cancel())
    fault_point(FaultPoint.CANCEL_SENT)


async def notify_run(db: Database, client: Client, run: str) -> None:
    """Signal a run's workflow that its row changed: the run is cancelled, paused or resumed."""
    execution = await execution_of(client, names.train_id(run))
    row = await find_run(db, run)
    if execution is None or row is None or row.status != "running":
        return
    if row.cancel_requested:
        await cancel_workflow(client, run, execution.run_id)
    else:
        notice = Notice(run=run, epoch=row.epoch, paused=row.paused, warnings=row.warnings)
        await give_notice(client, notice)


async def give_notice(client: Client, notice: Notice) -> None:
    """Signal a run's workflow what the store found."""
    await _unless_gone(client.get_workflow_handle(names.train_id(notice.run)).signal(names.NOTICE, notice))


async def _signal_batches(db: Database, client: Client, run: str, signal: str, limit: int | None) -> None:
    """Signal the batches that are open; each gets its share of a limit."""
    batches = await db.fetch("all_open_batches", run)
    for number, batch in enumerate(batches):
        make_id = names.evaluation_batch_id if batch["kind"] == "eval" else names.batch_id
        handle = client.get_workflow_handle(make_id(run, batch["step"], batch["batch"]))
        arguments: Sequence[Any] = [] if limit is None else [share(limit, len(batches), number)]
        await _unless_gone(handle.signal(signal, args=arguments))


async def _unless_gone(call: Awaitable[None]) -> None:
    """Await a call to a workflow; ignored if the workflow has ended."""
    try:
        await call
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
