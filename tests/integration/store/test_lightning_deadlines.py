"""The sweeper: one leader, found without traffic, hands off what workflows dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.queue.sweeper import keep_sweeping, sweep
from relight.types.store import Dispatch
from relight.types.wire import OpenRequest
from tests.support.lightning_kit import config, retrying
from tests.support.orchestration import eventually

OVERDUE = """
update attempts set started_at = started_at - interval '61 s', lease_until = lease_until - interval '61 s'
"""


@asynccontextmanager
async def sweeping(database: Database, *holders: str, lease_seconds: float = 0.4) -> AsyncGenerator[dict[str, Any]]:
    """Sweepers under way, by holder."""
    tasks = {
        holder: asyncio.create_task(
            keep_sweeping(database, holder=holder, period_seconds=0.05, lease_seconds=lease_seconds)
        )
        for holder in holders
    }
    try:
        yield tasks
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def leader(database: Database) -> str | None:
    """Who holds the lease."""
    return await database.pool.fetchval("select holder from leases where name = 'sweeper'")


async def test_an_overdue_attempt_is_found_without_any_request(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    await store.enqueue_rollout("x", config=config(timeout_seconds=0.1))
    rollout = await store.dequeue_rollout("w")
    assert rollout
    async with sweeping(database, "one"):
        (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=20)
    assert (ended.status, ended.failure_class) == ("failed", "timeout")
    await store.aclose()


async def test_one_of_two_sweepers_is_active_and_the_other_takes_over(database: Database) -> None:
    async with sweeping(database, "one", "two") as tasks:
        first = await eventually(lambda: leader(database))
        assert await sweep(database, "three") is None
        fence = await database.pool.fetchval("select fence from leases where name = 'sweeper'")
        tasks[first].cancel()

        async def other_leads() -> bool:
            return await leader(database) == ("two" if first == "one" else "one")

        await eventually(other_leads)
        assert await database.pool.fetchval("select fence from leases where name = 'sweeper'") > fence


async def test_two_sweepers_that_are_both_active_end_an_attempt_once(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    for number in range(20):
        await store.start_rollout(number, config=retrying("timeout", tries=5, timeout_seconds=60))
    await database.pool.execute(OVERDUE)
    found = await asyncio.gather(*[sweep(database, holder, 0) for holder in ("one", "two", "three")])
    judged = [attempt["attempt_id"] for some in found for attempt in some or []]
    assert len(judged) == len(set(judged)) == 20
    assert await database.pool.fetchval("select count(*) from rollouts where status = 'requeuing'") == 20


async def test_a_heartbeat_extends_the_deadline_without_writing_a_lease(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    rollout = await store.start_rollout("x", config=config(unresponsive_seconds=30))
    lease = "select lease_until from attempts"
    before = await database.pool.fetchval(lease)
    await database.pool.execute("update attempts set last_heartbeat = clock_timestamp() + interval '1 minute'")
    assert await database.pool.fetchval(lease) == before
    await database.pool.execute("update attempts set lease_until = clock_timestamp()")
    assert await sweep(database) == []
    assert await database.pool.fetchval(lease) > before
    assert (await store.query_attempts(rollout.rollout_id))[0].status == "preparing"


async def test_attempts_of_workflows_are_never_swept(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout(
        "x", config=config(timeout_seconds=0.01, unresponsive_seconds=0.01), dispatch=Dispatch(by="workflow", agent="a")
    )
    runs = await PostgresStore.create(database, "http://gateway")
    opened = await runs.open_attempt(
        OpenRequest(rollout_id=made.rollout_id, try_number=1, execution="e", worker_id="runner")
    )
    assert opened.state == "opened"
    await database.pool.execute("update attempts set started_at = now() - interval '1 hour'")
    assert await sweep(database) == []
    assert (await store.query_attempts(made.rollout_id))[0].status == "preparing"


async def test_a_longer_deadline_applies_to_an_attempt_in_progress(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    rollout = await store.start_rollout("x", config=config(timeout_seconds=60))
    await database.pool.execute(OVERDUE)
    await store.update_rollout(rollout.rollout_id, config=config(timeout_seconds=600))
    assert await sweep(database) == []
    await store.update_rollout(rollout.rollout_id, config=config(timeout_seconds=60))
    assert [attempt["status"] for attempt in await sweep(database) or []] == ["timeout"]
