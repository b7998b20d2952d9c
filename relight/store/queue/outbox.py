"""Starts the workflows of enqueued rollouts, from a transactional outbox.

A row of the outbox is an order to start or cancel a workflow, written in the rollout's transaction. It is processed
under a lock and marked once Temporal has answered, so any number of orchestrators may do so; processing an order twice
has no further effect. Periodically the workflows of open rollouts are started again, in case Temporal has lost them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from relight.errors import RelightError
from relight.retrying import Every, logged
from relight.store.database import Database
from relight.store.notifications import listening
from relight.store.storable import storable_text
from relight.temporal.search_attributes import of_rollout
from relight.types import names

log = logging.getLogger(__name__)
CHANNEL = "relight_outbox"
CANCEL_ORDER = "cancel"
BATCH = 50
POLL_SECONDS = 5.0
"""The interval of polls without a notification."""
LOST_SECONDS = 60.0
"""After this time the workflow of an open rollout is started again; one that runs is not affected."""
RETRY_SECONDS = 1.0


async def keep_dispatching(database: Database, client: Client, *, queue: str = names.ORCHESTRATOR_QUEUE) -> None:
    """Process orders as they come, until cancelled. `queue` is the task queue of this process' workflows."""
    async for _ in Every(RETRY_SECONDS):
        with logged(log, "can't start workflows from the outbox: %s", RelightError, RPCError, action="outbox_failed"):
            await _listen_and_dispatch(database, client, queue)


async def _listen_and_dispatch(database: Database, client: Client, queue: str) -> None:
    notified, lost = asyncio.Event(), asyncio.Event()

    def on_lost() -> None:
        lost.set()
        notified.set()

    async with listening(database, CHANNEL, lambda _: notified.set(), on_lost):
        async for _ in Every(POLL_SECONDS, wake=notified):
            if lost.is_set():
                return
            notified.clear()
            await dispatch(database, client, queue)
            await start_lost_again(database, client, queue)


async def dispatch(database: Database, client: Client, queue: str = names.ORCHESTRATOR_QUEUE) -> int:
    """Process the orders in the outbox; returns their number.

    Raises:
        RPCError: Temporal accepts none of them now.
    """
    total = 0
    while True:
        async with database.transaction() as tx:
            orders = await tx.fetch("claim_outbox", BATCH)
            answers = await _carry_out(database, client, queue, orders)
            done = [order["id"] for order, error in zip(orders, answers, strict=True) if error is None]
            await tx.execute("outbox_started", done)
        total += len(done)
        for error in filter(None, answers):
            raise error
        if len(orders) < BATCH:
            return total


async def start_lost_again(
    database: Database, client: Client, queue: str = names.ORCHESTRATOR_QUEUE, after_seconds: float = LOST_SECONDS
) -> int:
    """Start the workflows of rollouts that have been open for this time; those that run are not affected."""
    orders = await database.fetch("claim_unfinished_outbox", after_seconds, BATCH)
    for error in filter(None, await _carry_out(database, client, queue, orders)):
        raise error
    return len(orders)


async def _carry_out(database: Database, client: Client, queue: str, orders: Sequence[Any]) -> list[RPCError | None]:
    """The error for each order; None: it was processed."""
    return await asyncio.gather(*[_execute_order(database, client, queue, order) for order in orders])


async def _execute_order(database: Database, client: Client, queue: str, order: Any) -> RPCError | None:
    try:
        if order["workflow_type"] == CANCEL_ORDER:
            await client.get_workflow_handle(order["workflow_id"]).signal(names.CANCEL, order["input"])
        else:
            await _start(client, queue, order)
    except RPCError as error:
        if order["workflow_type"] == CANCEL_ORDER and error.status is RPCStatusCode.NOT_FOUND:
            return None  # it has ended, or was never started
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            return error
        rollout_id = names.rollout_of_workflow(order["workflow_id"])
        reason = storable_text(f"Temporal does not take its workflow: {error.message}")
        await database.execute("fail_undispatched", rollout_id, reason)
    return None


async def _start(client: Client, queue: str, order: Any) -> None:
    ours, task = order["task_queue"] == names.ORCHESTRATOR_QUEUE, names.task_name(order["mode"], order["position"])
    await client.start_workflow(
        order["workflow_type"],
        order["input"],
        id=order["workflow_id"],
        task_queue=queue if ours else order["task_queue"],
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        search_attributes=of_rollout(order["run"], order["step"], task),
        static_summary=f"inspection of {order['inspects']}" if order["inspects"] else "rollout from outside",
    )
