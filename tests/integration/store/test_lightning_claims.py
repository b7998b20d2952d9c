"""Claims of many at once, over several processes and services, against a real Postgres."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import asyncpg
import orjson
import pytest

from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.types.rollout import AttemptStatus, RolloutStatus
from relight.types.store import EnqueueRolloutRequest
from tests.support.lightning_kit import config, retrying
from tests.support.postgres import OWNER, connected_as

ROLLOUTS = 120
PROCESSES = 3
CONSUMER = """
import asyncio, sys, orjson
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore

async def consume(store, name, taken):
    while rollout := await store.dequeue_rollout(name):
        taken.append([rollout.rollout_id, rollout.attempt.attempt_id])
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")

async def main(url, name):
    database = await Database.connect(url, max_size=4)
    stores = [await PostgresLightningStore.create(database) for _ in range(4)]
    taken = []
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*[consume(store, f"{name}-{n}", taken) for n, store in enumerate(stores)])
    print(orjson.dumps(taken).decode(), flush=True)
    await database.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_claim_at_once_share_nothing(database: Database, database_url: str) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(ROLLOUTS)])
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", CONSUMER, database_url, f"p{number}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout
        assert (await child.stdout.readline()).strip() == b"ready"
    answers = await asyncio.gather(*[child.communicate(b"go\n") for child in children])
    taken = [pair for out, _ in answers for pair in orjson.loads(out)]
    assert sorted(rollout for rollout, _ in taken) == sorted(rollout.rollout_id for rollout in made)
    assert len({attempt for _, attempt in taken}) == ROLLOUTS
    rows = await database.pool.fetch("select status, attempts, queue_order from rollouts")
    assert Counter((row["status"], row["attempts"], row["queue_order"]) for row in rows) == {
        ("succeeded", 1, None): ROLLOUTS
    }


async def test_the_same_key_at_once_from_two_services_claims_once(database: Database) -> None:
    services = [await PostgresLightningStore.create(database) for _ in range(2)]
    await services[0].enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(20)])
    answers = await asyncio.gather(
        *[service.dequeue_rollout("w", idempotency_key="lost") for service in services for _ in range(5)]
    )
    assert len({rollout.attempt.attempt_id for rollout in answers if rollout}) == 1
    assert None not in answers
    assert await database.pool.fetchval("select count(*) from attempts") == 1


async def test_a_claim_that_found_nothing_may_be_repeated_with_its_key(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    assert await store.dequeue_rollout("w", idempotency_key="k") is None
    made = await store.enqueue_rollout("x")
    claimed = await store.dequeue_rollout("w", idempotency_key="k")
    assert claimed
    assert claimed.rollout_id == made.rollout_id


async def test_a_claim_and_its_attempt_are_one_transaction(database: Database) -> None:
    """Whatever fails in the middle, no rollout is taken out of the queue without an attempt."""
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout("x")
    async with connected_as(OWNER, database.url) as owner:
        await owner.execute("alter table attempts add constraint never check (worker_id <> 'broken') not valid")
    try:
        for _ in range(3):
            with pytest.raises(asyncpg.CheckViolationError):
                await store.dequeue_rollout("broken")
        row = await database.pool.fetchrow("select status, queue_order, attempts from rollouts")
        assert (row["status"], row["queue_order"] is not None, row["attempts"]) == ("queuing", True, 0)
    finally:
        async with connected_as(OWNER, database.url) as owner:
            await owner.execute("alter table attempts drop constraint never")
    claimed = await store.dequeue_rollout("whole")
    assert claimed
    assert claimed.rollout_id == made.rollout_id


async def test_every_claim_has_a_fence_and_a_token_of_its_own(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(5)])
    await store.dequeue_many_rollouts(5)
    rows = await database.pool.fetch("select fence, token_hash from attempts")
    assert len({row["fence"] for row in rows}) == len({row["token_hash"] for row in rows}) == 5


async def test_a_refused_request_fails_none_that_arrive_with_it(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    made = [await store.start_rollout(n) for n in range(30)]
    answers = await asyncio.gather(
        *[
            store.update_attempt(
                rollout.rollout_id, "at-none" if n % 3 == 0 else "latest", status=AttemptStatus.SUCCEEDED
            )
            for n, rollout in enumerate(made)
        ],
        return_exceptions=True,
    )
    assert [isinstance(answer, ValueError) for answer in answers] == [n % 3 == 0 for n in range(30)]
    ended = await store.query_rollouts(status_in=[RolloutStatus.SUCCEEDED])
    assert [rollout.input for rollout in ended] == [n for n in range(30) if n % 3]


async def test_a_retry_is_handed_out_when_its_back_off_is_over(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    await store.enqueue_rollout("first", config=retrying("failed", tries=3, backoff_seconds=40))
    first = await store.dequeue_rollout()
    assert first
    await store.update_attempt(first.rollout_id, "latest", status=AttemptStatus.FAILED)
    waits = await database.pool.fetchval("select extract(epoch from due_at - clock_timestamp())::float8 from rollouts")
    assert 38 < waits <= 40
    await store.enqueue_rollout("second", config=config())
    passed = await store.dequeue_rollout()
    assert passed
    assert passed.input == "second"
    await database.pool.execute("update rollouts set due_at = clock_timestamp() where due_at is not null")
    second = await store.dequeue_rollout()
    assert second
    assert second.attempt.sequence_id == 2
    await store.update_attempt(first.rollout_id, "latest", status=AttemptStatus.FAILED)
    waits = await database.pool.fetchval(
        "select extract(epoch from due_at - clock_timestamp())::float8 from rollouts where due_at is not null"
    )
    assert 58 < waits <= 60
