"""Streams of events: filters, what is no longer kept, wrong requests, many readers, slow ones, the service's end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from fastapi import FastAPI

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.events.client import follow_events
from relight.store.events.log import EventCursor, cursor_now, drop_events
from relight.types.events import StoreEvent
from tests.support.orchestration import eventually
from tests.support.processes import store_process
from tests.support.small_run import RUN, play_small_run
from tests.support.store_service import TOKEN, store_service

INSERT = "insert into rollouts (rollout_id, kind) select 'r' || n, 'external' from generate_series($1::int, $2::int) n"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
SINCE_EVER = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def url(database: Database) -> AsyncGenerator[str]:
    """A service."""
    async with store_service(await PostgresStore.create(database, "http://gateway"), database) as url:
        yield url


async def there(url: str, **options: Any) -> list[StoreEvent]:
    """All that there is."""
    options = {"since": SINCE_EVER, **options}
    return [event async for event in follow_events(url, TOKEN, follow=False, **options)]


async def test_a_stream_has_a_run_from_its_start_to_its_end(url: str, database: Database, tmp_path: Path) -> None:
    await play_small_run(database, tmp_path)
    events = await there(url, run=RUN)
    number = Counter(event.kind for event in events)
    assert {"rollout", "attempt", "run", "step", "version"} <= number.keys()
    assert [event.step for event in events if event.kind == "version"] == [0, 1, 2]
    steps = [(event.step, event.data["status"]) for event in events if event.kind == "step"]
    assert [step for step, status in steps if status == "recorded"][-2:] == [1, 2]
    runs = [event.data["status"] for event in events if event.kind == "run"]
    assert (runs[0], runs[-1]) == ("running", "finished")
    rollout_id = next(event.rollout_id for event in events if event.kind == "rollout")
    lives = [event for event in await there(url, rollout=rollout_id) if event.kind == "rollout"]
    assert [event.data["before"] for event in lives] == [None, *(event.data["status"] for event in lives[:-1])]
    assert lives[-1].data["status"] == "succeeded"
    assert {event.kind for event in await there(url, kinds=["step", "version"])} == {"step", "version"}
    assert await there(url, run="another") == []
    assert await there(url, since=datetime.now(UTC) + timedelta(hours=1)) == []


async def test_the_events_of_a_run_have_a_route_of_their_own(url: str, database: Database, tmp_path: Path) -> None:
    await play_small_run(database, tmp_path)
    await database.pool.execute(INSERT, 1, 3)
    async with aiohttp.ClientSession(headers=AUTHORIZATION) as session:
        query = {"since": "2020-01-01T00:00:00Z", "follow": "false", "kind": "run"}
        async with session.get(f"{url}/v1/relight/runs/{RUN}/events", params=query) as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.text()).count("event: run\n") == len(await there(url, run=RUN, kinds=["run"]))
        async with session.get(f"{url}/v1/relight/runs/unknown/events") as answer:
            assert answer.status == 404


async def test_a_reader_that_was_disconnected_for_too_long_gets_a_gap_event_and_continues(
    url: str, database: Database
) -> None:
    early = str(await cursor_now(database))
    await database.pool.execute(INSERT, 1, 20)
    late = (await there(url))[-5].cursor
    assert await drop_events(database, keep_events=8) == 12
    stream = follow_events(url, TOKEN, after=early)
    reset = await anext(stream)
    assert (reset.kind, bool(reset.cursor)) == ("reset", True)
    await database.pool.execute(INSERT, 21, 21)
    assert (await anext(stream)).rollout_id == "r21"
    await stream.aclose()
    kept = [event async for event in follow_events(url, TOKEN, after=late, follow=False)]
    assert [event.rollout_id for event in kept] == ["r17", "r18", "r19", "r20", "r21"]
    assert [event.kind for event in await there(url)] == ["reset"] + ["rollout"] * 9


async def test_old_events_are_deleted_by_age(database: Database) -> None:
    await database.pool.execute(INSERT, 1, 5)
    assert await drop_events(database) == 0
    await database.pool.execute("update events set created_at = now() - interval '2 days' where rollout_id < 'r4'")
    assert await drop_events(database) == 3


async def test_events_of_another_server_are_deleted_and_its_cursors_start_again(url: str, database: Database) -> None:
    await database.pool.execute(INSERT, 1, 2)
    await database.pool.execute("update events set xid = '4000000000' where rollout_id = 'r1'")
    cursor = EventCursor.parse("4000000001:4000000001:")
    stream = follow_events(url, TOKEN, after=str(cursor))
    assert (await anext(stream)).kind == "reset"
    await stream.aclose()
    await database.execute("drop_foreign_events")
    assert [event.rollout_id for event in await there(url)] == ["r2"]


@pytest.mark.parametrize(
    "query",
    [
        {"after": "yesterday"},
        {"after": "1:2"},
        {"after": "5:2:"},
        {"after": "1:5:3,2"},
        {"after": "1:1:~5:5:~-1"},
        {"after": "1:1:~5:5"},
        {"after": f"1:{10**19}:"},
        {"since": "soon"},
        {"kind": "thunder"},
        {"run": "\0"},
    ],
    ids=str,
)
async def test_an_invalid_cursor_is_refused(url: str, query: dict[str, str]) -> None:
    async with (
        aiohttp.ClientSession(headers=AUTHORIZATION) as session,
        session.get(f"{url}/v1/relight/events", params=query) as answer,
    ):
        assert answer.status == 422
        assert answer.content_type == "application/problem+json"


async def test_a_quiet_stream_brings_cursors(database: Database) -> None:
    def prepare(app: FastAPI) -> None:
        app.state.streams.beat_seconds = 0.05

    store = await PostgresStore.create(database, "http://gateway")
    async with store_service(store, database, prepare=prepare) as url:
        reader, writer = await open_raw(url, "?run=another")
        async with asyncio.timeout(30):
            first = cursor = await reader.readuntil(b"\n\n")
            await database.pool.execute(INSERT, 1, 1)
            while cursor_of(cursor) == cursor_of(first):
                cursor = await reader.readuntil(b"\n\n")
        writer.close()
        assert b": nothing new\n" in cursor
        assert await there(url, since=None, after=cursor_of(cursor)) == []


def cursor_of(block: bytes) -> str:
    return block.decode().strip().rpartition("id: ")[2]


async def open_raw(url: str, query: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A reader that reads only what it is told to."""
    host = urlsplit(url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port, limit=1024)
    head = f"GET /v1/relight/events{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"retry: ")
    return reader, writer


async def test_many_readers_are_served_by_few_queries(url: str, database: Database) -> None:
    readers = [await open_raw(url) for _ in range(300)]
    await database.pool.execute(INSERT, 1, 1)

    async with asyncio.timeout(60):
        for reader, writer in readers:
            await reader.readuntil(b'"rollout_id":"r1"')
            writer.close()


async def test_a_reader_that_does_not_read_delays_no_other(url: str, database: Database) -> None:
    stalled = [await open_raw(url) for _ in range(20)]
    stream = follow_events(url, TOKEN, after=str(await cursor_now(database)))
    total = 12_000
    async with asyncio.timeout(120):
        for first in range(1, total, 3000):
            await database.pool.execute(INSERT, first, first + 2999)
        for number in range(1, total + 1):
            assert (await anext(stream)).rollout_id == f"r{number}"
        reader, _ = stalled[0]
        text = b""
        while b'"r12000"' not in text:
            text = text[-1000:] + await reader.read(1 << 16)
    await stream.aclose()
    for _, writer in stalled:
        writer.close()


async def test_streams_over_the_limit_of_a_service_are_refused(database: Database) -> None:
    def prepare(app: FastAPI) -> None:
        app.state.streams.max_streams = 2

    store = await PostgresStore.create(database, "http://gateway")
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(store_service(store, database, prepare=prepare))
        held = [await open_raw(url) for _ in range(2)]
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=AUTHORIZATION))
        async with session.get(f"{url}/v1/relight/events") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        for _, writer in held:
            writer.close()

        async def taken() -> bool:
            async with session.get(f"{url}/v1/relight/events") as answer:
                return answer.status == 200

        await eventually(taken)


async def test_a_service_that_is_stopped_ends_its_streams_and_waits(database_url: str, tmp_path: Path) -> None:
    async with store_process(database_url, tmp_path / "log") as (url, pid), asyncio.timeout(60):
        quiet = [await open_raw(url) for _ in range(10)]
        database = await Database.connect(database_url)
        await database.pool.execute(INSERT, 1, 1)
        await database.close()
        async with aiohttp.ClientSession(headers=AUTHORIZATION) as session:
            body = {"rollout_ids": ["r1"], "timeout": 50}
            waiting = asyncio.create_task(session.post(f"{url}/v1/agl/waits/rollouts", json=body))
            for reader, _ in quiet:
                await reader.readuntil(b'"r1"')
            await asyncio.sleep(0.2)  # the wait has no sign of its own
            os.kill(pid, signal.SIGTERM)
            answer = await waiting
            assert (answer.status, "Retry-After" in answer.headers) == (503, True)
            for reader, writer in quiet:
                assert (await reader.read()).endswith(b"0\r\n\r\n")  # it was ended, not cut off
                writer.close()
