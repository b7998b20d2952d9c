"""Waits: one connection for all who wait, no end missed, also when the connection is cut."""

from __future__ import annotations

import asyncio

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.types.rollout import AttemptStatus
from relight.types.store import Dispatch, EnqueueRolloutRequest
from relight.types.wire import FinishRequest, OpenRequest
from tests.support.orchestration import eventually

LISTENERS = "select pid from pg_stat_activity where datname = current_database() and query like 'LISTEN%'"
SOON = 4.0
"""Less than the time after which everything is looked at again."""


async def listeners(database: Database) -> list[int]:
    """Backends that listen."""
    return [row["pid"] for row in await database.pool.fetch(LISTENERS)]


async def test_many_waiters_share_one_connection(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(50)])
    waits = [
        asyncio.create_task(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)) for rollout in made
    ]
    await eventually(lambda: listeners(database))
    assert len(await listeners(database)) == 1
    while rollout := await store.dequeue_rollout():
        await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*waits)
    assert [len(answer) for answer in answers] == [1] * 50
    assert store.waits.connections == 1
    await store.aclose()
    assert not await eventually_gone(database)


async def eventually_gone(database: Database) -> list[int]:
    """Those that still listen once they had time to go."""

    async def gone() -> bool:
        return not await listeners(database)

    await eventually(gone)
    return await listeners(database)


async def test_an_end_while_the_connection_was_cut_is_not_missed(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    other = await PostgresLightningStore.create(database)
    rollout = await store.start_rollout("x")
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
    (pid,) = await eventually(lambda: listeners(database))
    async with database.transaction() as tx:  # ends without a listener, whatever the reconnection does
        await tx.connection.execute("lock table rollouts in access exclusive mode")
        await tx.connection.fetchval("select pg_terminate_backend($1, 5000)", pid)
        await tx.connection.execute(
            "update rollouts set status = 'succeeded', ended_at = now() where rollout_id = $1", rollout.rollout_id
        )
    (ended,) = await asyncio.wait_for(waiting, 20)
    assert ended.status == "succeeded"
    again = await other.start_rollout("y")
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[again.rollout_id]))
    await other.update_attempt(again.rollout_id, "latest", status=AttemptStatus.FAILED)
    assert await asyncio.wait_for(waiting, 20)
    await store.aclose()


async def test_a_rollout_that_a_workflow_finishes_ends_the_wait_too(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout("x", dispatch=Dispatch(by="workflow", agent="a"))
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60))
    await eventually(lambda: listeners(database))
    runs = await PostgresStore.create(database, "http://gateway")
    opened = await runs.open_attempt(
        OpenRequest(rollout_id=made.rollout_id, try_number=1, execution="e", worker_id="runner")
    )
    assert opened.attempt
    finish = FinishRequest(attempt_id=opened.attempt.attempt_id, fence=opened.attempt.fence, reward=1.0)
    await runs.finish_attempt(finish)
    async with asyncio.timeout(SOON):
        (ended,) = await waiting
    assert (ended.status, ended.reward) == ("succeeded", 1.0)
    await store.aclose()


async def test_a_deleted_rollout_delays_no_wait(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    first, second = await store.start_rollout("x"), await store.start_rollout("y")
    ids = [first.rollout_id, second.rollout_id]
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=60))
    await eventually(lambda: listeners(database))
    await store.cancel_rollout(first.rollout_id)
    await store.delete_rollout(first.rollout_id)
    await store.update_attempt(second.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    async with asyncio.timeout(SOON):
        ended = await waiting
    assert [rollout.rollout_id for rollout in ended] == [second.rollout_id]
    await store.aclose()
