"""Compares Postgres with Temporal, and corrects the differences.

Postgres says whether a run is under way; Temporal knows whether a workflow drives it. They differ after a terminate,
after the loss of Temporal's database, or if a workflow failed before it recorded that. Then the run becomes
`interrupted`, with the reason, and its batches are cancelled. If no client's request ended the workflow, a new one is
started; after a client's terminate or an error, `relight resume` does that. A run with a recorded cancel is cancelled
again, or closed if no workflow drives it. A run that makes no progress gets a warning.
"""

from __future__ import annotations

import logging

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from relight.errors import ConfigError, PostgresError, SupersededError, TemporalError
from relight.operators.run_workflows import RunWorkflowState, run_workflow_state
from relight.operators.signals import cancel_workflow, give_notice
from relight.operators.starting import start_run
from relight.retrying import Every, logged
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.store.runs.health import ACTOR, find_stalls
from relight.store.runs.rows import RunRow, get_run, watched_runs
from relight.types import names
from relight.types.payloads import FinishInput, Notice

log = logging.getLogger(__name__)

PERIOD_SECONDS = 30.0
AWAY = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
"""Errors of the server itself, which are the same for every run."""
BACKOFF_SECONDS = (0, 60, 300)
"""How long a run that lost its workflow waits for the next one, by the number of restarts within the hour. A fourth
restart waits until the first is an hour ago.
"""


async def keep_reconciling(db: Database, client: Client, queue: str = names.ORCHESTRATOR_QUEUE) -> None:
    """Compare every 30 s, until cancelled. Any number of orchestrators may do so: each finding is written once."""
    errors = (PostgresError, RPCError, TemporalError)
    async for _ in Every(PERIOD_SECONDS):
        with logged(log, "can't compare Postgres with Temporal: %s", *errors, action="reconcile_failed"):
            await reconcile(db, client, queue)
            await report_stalls(db, client)


async def reconcile(db: Database, client: Client, queue: str = names.ORCHESTRATOR_QUEUE) -> list[str]:
    """Correct what Postgres and Temporal differ in; returns the runs whose row was changed or that were started."""
    return [run.run for run in await watched_runs(db) if await _compare_one(db, client, queue, run)]


async def _compare_one(db: Database, client: Client, queue: str, run: RunRow) -> bool:
    """Compare a run; an error about one does not keep the others from being compared."""
    try:
        return await compare(db, client, queue, run)
    except RPCError as error:
        if error.status in AWAY:
            raise
        log.warning("can't compare run %s: %s", run.run, error, extra={"action": "reconcile_failed"})
        return False


async def compare(db: Database, client: Client, queue: str, run: RunRow) -> bool:
    """Correct what Postgres and Temporal differ in about one run, by the row that was read."""
    driver = await run_workflow_state(client, run)
    if driver.foreign:
        return False
    if run.cancel_requested or driver.cancelled:
        return await _cancel(db, client, run, driver)
    if driver.is_open:
        return False
    if run.status == "interrupted" and driver.lost:
        return await _drive_again(db, client, queue, run)
    if not await _interrupt(db, client, run, driver):
        return False
    if driver.lost:
        await _drive_again(db, client, queue, run)
    return True


async def _cancel(db: Database, client: Client, run: RunRow, driver: RunWorkflowState) -> bool:
    """Cancel a run's workflow again; close a run that has none."""
    if driver.is_open:
        # The row is read again after the workflow, which `relight resume` may have started since.
        row = await get_run(db, run.run)
        if row.cancel_requested == run.cancel_requested and row.status in ("running", "interrupted"):
            await cancel_workflow(client, run.run, driver.execution or "")
        return False
    try:
        await lifecycle.finish_run(db, FinishInput(run=run.run, epoch=run.epoch, status="cancelled"))
    except SupersededError:
        return False  # it is driven again
    log.warning("run %s is cancelled", run.run, extra={"action": "run_cancelled", "run": run.run})
    await cancel_batches(db, client, run.run)
    return True


async def _interrupt(db: Database, client: Client, run: RunRow, driver: RunWorkflowState) -> bool:
    """Record that no workflow drives a run, and why."""
    name = run.run
    reason = f"no workflow drives it: {names.train_id(name)} {driver.ended}"
    reason += "; an orchestrator starts a new workflow" if driver.lost else f"; `relight resume {name}` goes on with it"
    if not await db.value("interrupt_run", name, run.epoch, reason, driver.lost, list(BACKOFF_SECONDS)):
        return False
    log.warning("run %s: %s", name, reason, extra={"action": "run_interrupted", "run": name})
    await cancel_batches(db, client, name)
    return True


async def _drive_again(db: Database, client: Client, queue: str, run: RunRow) -> bool:
    """Start a new workflow for a run that lost its own, if it is time. The restart is counted before it is made."""
    name = run.run
    if not await db.value("drive_again", name, run.epoch, len(BACKOFF_SECONDS)):
        return False
    try:
        await start_run(client, queue, name, run.file, {"actor": ACTOR})
    except (ConfigError, WorkflowAlreadyStartedError) as error:
        # The file is another release's, or `relight resume` was faster.
        log.warning("run %s is not driven again: %s", name, error, extra={"action": "not_driven_again", "run": name})
        return False
    log.warning("run %s is driven again", name, extra={"action": "run_driven_again", "run": name})
    return True


async def report_stalls(db: Database, client: Client) -> list[str]:
    """Add a warning to runs that make no progress, and remove it from those that do; returns their names."""
    stalls = await find_stalls(db)
    for stall in stalls:
        log.warning(
            "run %s: %s",
            stall.run,
            stall.warnings or "makes progress again",
            extra={"action": "stall", "run": stall.run},
        )
        await give_notice(client, Notice(**stall._asdict()))
    return [stall.run for stall in stalls]


async def cancel_batches(db: Database, client: Client, run: str) -> None:
    """Cancel the batches of the run's open step; those that have ended are ignored."""
    for row in await db.fetch("open_batches", run):
        batch = client.get_workflow_handle(names.batch_id(run, row["step"], row["batch"]))
        try:
            await batch.cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
