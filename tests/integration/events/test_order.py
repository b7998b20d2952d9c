"""No event is missed or told twice, whatever order transactions end in, and however often a reader comes again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.events.client import follow_events
from relight.store.events.log import BEGINNING, EVERYTHING, EventCursor, Snapshot, cursor_now, read_page
from relight.store.events.tail import EventTail
from relight.types.events import StoreEvent
from tests.support.orchestration import eventually
from tests.support.postgres import fresh_database
from tests.support.processes import free_port
from tests.support.store_service import TOKEN, store_service

ROLLOUTS = [f"r{number}" for number in range(6)]
WRITERS = 6
ROUNDS = 15
NEXT = {"queuing": "preparing", "preparing": "running", "running": "requeuing", "requeuing": "preparing"}


async def write(database: Database, chance: random.Random) -> None:
    """Transactions that take their numbers early, overtake each other, and sometimes end in nothing."""
    for _ in range(ROUNDS):
        connection = await database.pool.acquire()
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetchval("select pg_current_xact_id()")
        for rollout_id in sorted(chance.sample(ROLLOUTS, chance.randint(1, 3))):
            await asyncio.sleep(chance.random() * 0.01)
            query = "select status from rollouts where rollout_id = $1 for no key update"
            status = NEXT[await connection.fetchval(query, rollout_id)]
            await connection.execute("update rollouts set status = $2 where rollout_id = $1", rollout_id, status)
            await asyncio.sleep(chance.random() * 0.01)
        await (transaction.rollback() if chance.random() < 0.2 else transaction.commit())
        await database.pool.release(connection)


@asynccontextmanager
async def written(database: Database, seed: int) -> AsyncGenerator[asyncio.Event]:
    """Rollouts that many writers change meanwhile; the event tells when they have done."""
    for rollout_id in ROLLOUTS:
        await database.pool.execute("insert into rollouts (rollout_id, kind) values ($1, 'external')", rollout_id)
    done = asyncio.Event()

    async def all_write() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(write(database, random.Random(f"{seed}/{number}")))
        done.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(all_write())
        yield done


async def check(database: Database, delivered: list[tuple[int, str, str | None, str]]) -> None:
    """Every event once; and of each rollout each status after the one before it."""
    there = {row[0] for row in await database.pool.fetch("select id from events")}
    assert len(delivered) == len({event[0] for event in delivered})
    assert {event[0] for event in delivered} == there
    assert len(there) > WRITERS * ROUNDS
    known: dict[str, str | None] = {}
    for _, rollout_id, before, status in delivered:
        assert known.get(rollout_id) == before
        known[rollout_id] = status


def short(event: StoreEvent) -> tuple[int, str, str | None, str]:
    return event.id, event.rollout_id or "", event.data["before"], event.data["status"]


@pytest.mark.parametrize("seed", range(2))
async def test_a_reader_that_reconnects_gets_every_event_once(postgres_url: str, seed: int) -> None:
    async with fresh_database(postgres_url, max_size=24) as database:
        store = await PostgresStore.create(database, "http://gateway")
        chance = random.Random(seed)
        delivered: list[tuple[int, str, str | None, str]] = []
        cursor = str(await cursor_now(database))
        async with store_service(store, database) as url, asyncio.timeout(60), written(database, seed) as done:
            while not done.is_set() or len(delivered) < await database.pool.fetchval("select count(*) from events"):
                events = follow_events(url, TOKEN, after=cursor, follow=chance.random() < 0.8)
                with suppress(TimeoutError):
                    async with asyncio.timeout(chance.random() * 0.2), aclosing(events):
                        async for event in events:
                            delivered.append(short(event))
                            cursor = event.cursor
        await check(database, delivered)


async def test_a_reader_misses_nothing_when_the_service_restarts(postgres_url: str) -> None:
    async with fresh_database(postgres_url, max_size=24) as database:
        store = await PostgresStore.create(database, "http://gateway")
        port, delivered = free_port(), list[tuple[int, str, str | None, str]]()
        cursor = str(await cursor_now(database))

        async def serve(until: Callable[[], Awaitable[object]]) -> None:
            async with store_service(store, database, port=port):
                await until()

        async def follow(done: asyncio.Event) -> None:
            async for event in follow_events(f"http://127.0.0.1:{port}", TOKEN, after=cursor):
                delivered.append(short(event))
                if done.is_set() and len(delivered) == await database.pool.fetchval("select count(*) from events"):
                    return

        async def enough(number: int) -> None:
            async def so_many() -> bool:
                return len(delivered) >= number

            await eventually(so_many)

        async with asyncio.timeout(60), written(database, 7) as done:
            following = asyncio.create_task(follow(done))
            for number in (10, 50, 100):
                await serve(lambda number=number: enough(number))
            await serve(lambda: following)
        await check(database, delivered)


@pytest.mark.parametrize("ring_events", [10_000, 5])
async def test_readers_of_the_ring_and_of_postgres_get_the_same_events(postgres_url: str, ring_events: int) -> None:
    """With a small ring, readers fall out of it again and again."""
    async with fresh_database(postgres_url, max_size=24) as database:
        tail = EventTail(database, poll_seconds=0.01, ring_events=ring_events)
        start = await cursor_now(database)
        delivered: list[list[tuple[int, str, str | None, str]]] = [[] for _ in range(8)]

        async def follow(number: int) -> None:
            cursor, chance = start, random.Random(number)
            while True:
                events, cursor = await tail.next_page(cursor, EVERYTHING)
                delivered[number] += [short(StoreEvent.model_validate_json(event.json)) for event in events]
                await asyncio.sleep(chance.random() * 0.05)

        async with asyncio.timeout(60), tail.followed():
            readers = [asyncio.create_task(follow(number)) for number in range(8)]
            async with written(database, 11):
                pass
            total = await database.pool.fetchval("select count(*) from events")

            async def all_delivered() -> bool:
                return all(len(one) >= total for one in delivered)

            await eventually(all_delivered)
            for reader in readers:
                reader.cancel()
        for one in delivered:
            await check(database, one)
        await tail.aclose()
        assert (tail.reads < 30) == (ring_events == 10_000)


async def test_an_event_is_sent_while_an_older_transaction_is_open(database: Database) -> None:
    async with database.pool.acquire() as older:
        transaction = older.transaction()
        await transaction.start()
        insert = "insert into rollouts (rollout_id, kind) values ($1, 'external')"
        await older.execute(insert, "early")
        start = EventCursor(BEGINNING)
        await database.pool.execute(insert, "late")
        events, cursor = await read_page(database, start)
        assert [event.rollout_id for event in events] == ["late"]
        await transaction.commit()
    events, cursor = await read_page(database, EventCursor.parse(str(cursor)))
    assert [event.rollout_id for event in events] == ["early"]
    assert (await read_page(database, cursor))[0] == []


async def test_pages_of_a_window_follow_each_other(database: Database) -> None:
    insert = "insert into rollouts (rollout_id, kind) select 'r' || n, 'external' from generate_series(1, 25) n"
    await database.pool.execute(insert)
    cursor, delivered = EventCursor(BEGINNING), list[str | None]()
    while True:
        events, cursor = await read_page(database, EventCursor.parse(str(cursor)), limit=10)
        delivered += [event.rollout_id for event in events]
        if cursor.window is None:
            break
        await database.pool.execute(f"insert into rollouts (rollout_id, kind) values ('x{len(delivered)}', 'external')")
    assert delivered == [f"r{number}" for number in range(1, 26)]
    events, _ = await read_page(database, cursor)
    assert [event.rollout_id for event in events] == ["x10", "x20"]


def test_snapshots_compare_as_in_postgres() -> None:
    older, newer = Snapshot(10, 20, (10, 15)), Snapshot(15, 22, (15, 21))
    assert [older.sees(xid) for xid in (9, 10, 11, 15, 19, 20)] == [True, False, True, False, True, False]
    assert newer.covers(older)
    assert not older.covers(newer)
    assert newer.covers(newer)
    assert not Snapshot(10, 22, (10, 12)).covers(older)
