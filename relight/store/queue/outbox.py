"""Starts the workflows that were asked for in the transactions which wrote their rollouts.

A row of the outbox is an order: start this workflow, or cancel it. It is taken under a lock and marked once Temporal
has answered, so any number of orchestrators may do so; an order that is carried out twice does nothing the second time.
Now and then the workflows of rollouts that are still open are started again, in case Temporal has lost them.
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
LOOK_SECONDS = 5.0
"""Between two looks that nothing asked for."""
LOST_SECONDS = 60.0
"""How long the workflow of an open rollout is believed to run."""
RETRY_SECONDS = 1.0


async def keep_dispatching(
    database: Database, client: Client, *, queue: str = names.ORCHESTRATOR_QUEUE, lost_seconds: float = LOST_SECONDS
) -> None:
    """Carry out orders as they come, until cancelled. `queue` is where this process' workflows run."""
    async for _ in Every(RETRY_SECONDS):
        with logged(log, "can't start workflows from the outbox: %s", RelightError, RPCError, action="outbox_failed"):
            await _listen_and_dispatch(database, client, queue, lost_seconds)


async def _listen_and_dispatch(database: Database, client: Client, queue: str, lost_seconds: float) -> None:
    stirred, lost = asyncio.Event(), asyncio.Event()

    def on_lost() -> None:
        lost.set()
        stirred.set()

    async with listening(database, CHANNEL, lambda _: stirred.set(), on_lost):
        while not lost.is_set():
            stirred.clear()
            await dispatch(database, client, queue)
            await start_lost_again(database, client, queue, lost_seconds)
            try:
                await asyncio.wait_for(stirred.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue


async def dispatch(database: Database, client: Client, queue: str = names.ORCHESTRATOR_QUEUE) -> int:
    """Carry out what is in the outbox; returns how many orders that were.

    Raises:
        RPCError: Temporal takes none of them now.
    """
    total = 0
    while True:
        async with database.transaction() as connection:
            orders = await database.fetch("claim_outbox", BATCH, connection=connection)
            answers = await _carry_out(database, client, queue, orders)
            done = [order["id"] for order, error in zip(orders, answers, strict=True) if error is None]
            await database.execute("outbox_started", done, connection=connection)
        total += len(done)
        for error in filter(None, answers):
            raise error
        if len(orders) < BATCH:
            return total


async def start_lost_again(
    database: Database, client: Client, queue: str = names.ORCHESTRATOR_QUEUE, after_seconds: float = LOST_SECONDS
) -> int:
    """Start the workflows of rollouts that have been open for so long; those that run are left alone."""
    orders = await database.fetch("claim_unfinished_outbox", after_seconds, BATCH)
    for error in filter(None, await _carry_out(database, client, queue, orders)):
        raise error
    return len(orders)


async def _carry_out(database: Database, client: Client, queue: str, orders: Sequence[Any]) -> list[RPCError | None]:
    """What Temporal has against each order; None: it is done."""
    return await asyncio.gather(*[_obey(database, client, queue, order) for order in orders])


async def _obey(database: Database, client: Client, queue: str, order: Any) -> RPCError | None:
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
