"""What an accepted command means to workflows that are live: told once its row is committed.

Done after every try of `change_run`, also where the row was there already, so that a process that dies between the two
loses nothing. All of it may be done twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from relight.store.database import Database
from relight.types import names
from relight.types.payloads import ChangeInput, ChangeResult, Notice
from relight.types.shares import share


async def carry_out(db: Database, client: Client, change: ChangeInput, result: ChangeResult) -> None:
    """Tell the workflows that a command concerns."""
    if not result.accepted:
        return
    if change.action == names.CANCEL:
        await _unless_gone(client.get_workflow_handle(names.train_id(change.run)).cancel())
    elif change.action == names.CANCEL_ROLLOUT:
        rollout_id = str(change.value["rollout_id"])
        handle = client.get_workflow_handle(names.rollout_workflow_id(rollout_id))
        await _unless_gone(handle.signal(names.CANCEL, f"cancelled by {change.actor}"))
    elif change.action == names.SET_CONCURRENCY:
        await _tell_batches(db, client, change.run, names.SET_CONCURRENCY, int(result.after))
    elif change.action in (names.RETRY_ROLLOUT, names.RETRY_FAILED, names.RESUME):
        await _tell_batches(db, client, change.run, names.LOOK_AGAIN, None)


async def give_notice(client: Client, notice: Notice) -> None:
    """Tell a run's workflow what the store found; it may come twice."""
    await _unless_gone(client.get_workflow_handle(names.train_id(notice.run)).signal(names.NOTICE, notice))


async def _tell_batches(db: Database, client: Client, run: str, signal: str, limit: int | None) -> None:
    """Signal the batches that are open; each gets its share of a limit."""
    batches = await db.fetch("all_open_batches", run)
    for number, batch in enumerate(batches):
        make_id = names.evaluation_batch_id if batch["kind"] == "eval" else names.batch_id
        handle = client.get_workflow_handle(make_id(run, batch["step"], batch["batch"]))
        arguments: Sequence[Any] = [] if limit is None else [share(limit, len(batches), number)]
        await _unless_gone(handle.signal(signal, args=arguments))


async def _unless_gone(call: Awaitable[None]) -> None:
    """A workflow that has ended needs no telling."""
    try:
        await call
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
