"""Everything at once, from two services and two sweepers: no deadlock, nothing lost, and the invariants hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from relight.errors import ConflictError, NotFoundError
from relight.store.database import Database
from relight.store.maintenance.check import check_store
from relight.store.postgres import PostgresLightningStore
from relight.store.queue.sweeper import sweep
from relight.types.rollout import AttemptStatus
from relight.types.store import EnqueueRolloutRequest
from tests.support.lightning_kit import config, span_of
from tests.support.orchestration import eventually

CONFIGS: list[dict[str, Any]] = [
    {},
    {"max_attempts": 3, "retry_condition": ["agent_error", "timeout", "unresponsive"]},
    {"timeout_seconds": 0.05, "max_attempts": 2, "retry_condition": ["timeout"]},
    {"unresponsive_seconds": 0.05, "max_attempts": 5, "retry_condition": ["unresponsive"]},
]
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
CLIENTS = 12
CALLS = 60


class Client:
    """Calls whatever comes to its mind, on what it and others have seen."""

    def __init__(self, store: PostgresLightningStore, database: Database, seen: list[str], seed: int) -> None:
        self.store = store
        self.database = database
        self.seen = seen
        self.random = random.Random(seed)
        self.name = f"w{seed % 5}"
        self.numbers = iter(range(seed * 1000, seed * 1000 + 1000))

    async def go(self) -> None:
        """All of its calls. Refusals are answers; anything else is a bug."""
        calls: list[Callable[[], Awaitable[Any]]] = [
            self.enqueue,
            self.dequeue,
            self.dequeue,
            self.spans,
            self.spans,
            self.end,
            self.end,
            self.update,
            self.again,
            self.cancel,
            self.delete,
            self.sweep,
        ]
        for _ in range(CALLS):
            with suppress(ConflictError, NotFoundError):
                await self.random.choice(calls)()

    def some(self) -> str:
        return self.random.choice(self.seen)

    async def enqueue(self) -> None:
        requests = [
            EnqueueRolloutRequest(input=n, config=config(**self.random.choice(CONFIGS)))
            for n in range(self.random.randint(1, 4))
        ]
        self.seen += [rollout.rollout_id for rollout in await self.store.enqueue_many_rollouts(requests)]

    async def dequeue(self) -> None:
        await self.store.dequeue_many_rollouts(self.random.randint(1, 3), self.name)

    async def spans(self) -> None:
        attempts = [await self.store.get_latest_attempt(self.some()) for _ in range(3)]
        given = [span_of(attempt, str(next(self.numbers)), -1) for attempt in attempts if attempt]
        await self.store.add_many_spans(given)

    async def end(self) -> None:
        status: Any = self.random.choice(["succeeded", "failed", "timeout", "unresponsive", "running"])
        await self.store.update_attempt(self.some(), "latest", status=status, worker_id=self.name)

    async def update(self) -> None:
        status: Any = self.random.choice(["requeuing", "succeeded", "cancelled", "running"])
        await self.store.update_rollout(self.some(), status=status)

    async def again(self) -> None:
        await self.store.start_attempt(self.some(), self.name)

    async def cancel(self) -> None:
        await self.store.cancel_rollout(self.some())

    async def delete(self) -> None:
        await self.store.delete_rollout(self.some())

    async def sweep(self) -> None:
        await sweep(self.database, self.name, 0.01)


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_invariants_hold_under_concurrent_random_calls(database: Database, seed: int) -> None:
    stores = [await PostgresLightningStore.create(database) for _ in range(2)]
    seen = [(await stores[0].enqueue_rollout(n)).rollout_id for n in range(5)]
    clients = [Client(stores[n % 2], database, seen, seed * 100 + n) for n in range(CLIENTS)]
    await asyncio.gather(*[client.go() for client in clients])
    assert await check_store(database) == []
    left = (await stores[0].query_rollouts(status_in=["queuing", "requeuing"])).total  # type: ignore[list-item]
    claimed = await stores[1].dequeue_many_rollouts(1000)
    assert len(claimed) == left


async def test_a_deletion_waits_for_a_change_of_its_rollout_and_heeds_it(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    rollout = await store.start_rollout("1+1")
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    async with database.transaction() as tx:
        change = "update rollouts set status = 'requeuing' where rollout_id = $1"
        await tx.connection.execute(change, rollout.rollout_id)
        deletion = asyncio.create_task(store.delete_rollout(rollout.rollout_id))

        async def waits() -> bool:
            return await database.pool.fetchval(WAITING) == 1

        await eventually(waits)
    with pytest.raises(ConflictError, match="is requeuing; cancel it first"):
        await deletion
    assert len(await store.query_attempts(rollout.rollout_id)) == 1
