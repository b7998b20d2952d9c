"""Compares Postgres with Temporal: a run that nobody drives becomes `interrupted`, and its batches are cancelled.
One that is driven and stands still is warned of.

Postgres says that a run goes on; Temporal knows whether anybody drives it. They differ after a terminate, after the
loss of Temporal's database, or where a workflow failed before it could say so. `relight train` with the same file, or a
start of the workflow by hand, then goes on with the run.
"""

from __future__ import annotations

import asyncio
import logging

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from relight.activities.effects import give_notice
from relight.errors import PostgresError
from relight.store.database import Database
from relight.store.trouble import look_for_stalls
from relight.types import names
from relight.types.payloads import Notice

log = logging.getLogger(__name__)

PERIOD_SECONDS = 30.0


async def keep_reconciling(db: Database, client: Client) -> None:
    """Look every 30 s, until cancelled. Any number of orchestrators may do so: each finding is written once."""
    while True:
        try:
            await reconcile(db, client)
            await tell_of_stalls(db, client)
        except (PostgresError, RPCError) as error:
            log.warning("can't compare Postgres with Temporal: %s", error, extra={"action": "reconcile_failed"})
        await asyncio.sleep(PERIOD_SECONDS)


async def reconcile(db: Database, client: Client) -> list[str]:
    """Mark runs that nobody drives; returns their names."""
    found: list[str] = []
    for run in await db.fetch("running_runs"):
        if await is_driven(client, run["run"]):
            continue
        reason = "nobody drives it: its workflow ended without closing it; start it again with the same run file"
        if await db.value("interrupt_run", run["run"], run["epoch"], reason):
            log.warning("run %s: %s", run["run"], reason, extra={"action": "run_interrupted", "run": run["run"]})
            found.append(run["run"])
            await cancel_batches(db, client, run["run"])
    return found


async def tell_of_stalls(db: Database, client: Client) -> list[str]:
    """Tell runs that stand still, and those that move again; returns their names."""
    stalls = await look_for_stalls(db)
    for stall in stalls:
        log.warning(
            "run %s: %s", stall.run, stall.warnings or "moves again", extra={"action": "stall", "run": stall.run}
        )
        await give_notice(client, Notice(**stall._asdict()))
    return [stall.run for stall in stalls]


async def is_driven(client: Client, run: str) -> bool:
    """Whether the run's workflow is open."""
    try:
        description = await client.get_workflow_handle(names.train_id(run)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return description.status is WorkflowExecutionStatus.RUNNING


async def cancel_batches(db: Database, client: Client, run: str) -> None:
    """Cancel the batches of the run's open step; those that have ended already are left alone."""
    for row in await db.fetch("open_batches", run):
        batch = client.get_workflow_handle(names.batch_id(run, row["step"], row["batch"]))
        try:
            await batch.cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
