"""Connections to Postgres that look alive and are dead: who waits on one is told, and the next is a new one."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from typing import Any, cast

import asyncpg
import pytest

from relight.errors import PostgresError
from relight.store import database as databases
from relight.store import live_connection
from relight.store.database import Database
from relight.store.notifications import listening
from tests.chaos.network import BOTH, LOOPBACK, Edge, Target, Way


@pytest.fixture
async def edge(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Edge]:
    """A way to Postgres, and short timeouts on it."""
    monkeypatch.setattr(databases, "COMMAND_SECONDS", 2.0)
    monkeypatch.setattr(live_connection, "CANCEL_SECONDS", 0.5)
    monkeypatch.setattr(live_connection, "PING_SECONDS", 0.2)
    edge = Edge("test->postgres", random.Random(1))
    edge.target = Target.of(database_url)
    await edge.listen()
    yield edge
    await edge.close()


@pytest.fixture
async def through(edge: Edge, database_url: str) -> AsyncGenerator[Database]:
    """Postgres at the end of that way."""
    path = database_url.partition("?")[0].partition("@/")
    database = await Database.connect(f"{path[0]}@{LOOPBACK}:{edge.port}/{path[2]}?sslmode=disable", max_size=2)
    yield database
    await database.close()


@pytest.mark.parametrize("ways", [BOTH, {Way.UP}, {Way.DOWN}])
async def test_a_query_on_a_dead_connection_ends_and_the_next_gets_a_new_one(
    edge: Edge, through: Database, ways: frozenset[Way]
) -> None:
    assert await through.pool.fetchval("select 1") == 1
    edge.lose(frozenset(ways))
    with pytest.raises(PostgresError):
        async with databases.translated(), asyncio.timeout(30):
            await through.pool.fetchval("select 2")
    async with asyncio.timeout(30):
        assert await through.pool.fetchval("select 3") == 3
    assert edge.lost_bytes


@pytest.mark.parametrize("ways", [BOTH, {Way.UP}, {Way.DOWN}])
async def test_a_command_that_was_lost_is_given_up_long_before_its_time_is_over(
    edge: Edge, through: Database, monkeypatch: pytest.MonkeyPatch, ways: frozenset[Way]
) -> None:
    monkeypatch.setattr(live_connection, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(live_connection, "ON_ITS_WAY_SECONDS", 0.1)
    assert await through.pool.fetchval("select 1") == 1
    edge.lose(frozenset(ways))
    async with asyncio.timeout(20):
        with pytest.raises(PostgresError):
            async with databases.translated():
                await through.pool.fetchval("select 2", timeout=600)


async def test_the_locks_of_a_transaction_whose_connection_died_are_free_as_soon_as_its_command_is_given_up(
    edge: Edge, through: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_connection, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(live_connection, "ON_ITS_WAY_SECONDS", 0.1)
    with pytest.raises(PostgresError):
        await _lose_while_locking(edge, through)
    other: Any = await asyncpg.connect(database_url)
    try:
        await other.execute("set lock_timeout = '20s'")  # without the mend the server holds it for a minute
        await other.execute("select pg_advisory_lock(1)")
    finally:
        await other.close()


async def _lose_while_locking(edge: Edge, through: Database) -> None:
    async with through.transaction() as tx:
        await tx.connection.execute("select pg_advisory_xact_lock(1)")
        edge.lose()
        await tx.connection.execute("select 1", timeout=600)


async def test_a_command_at_which_postgres_works_is_waited_for(
    through: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_connection, "LATE_SECONDS", 0.1)
    asked: list[bool | None] = []
    end_idle = live_connection.end_idle_session

    async def watched(session: live_connection.Session) -> bool | None:
        asked.append(await end_idle(session))
        return asked[-1]

    monkeypatch.setattr(live_connection, "end_idle_session", watched)
    async with through.transaction() as tx:
        assert await tx.connection.fetchval("select 1 from pg_sleep(1.5)", timeout=60) == 1
        assert await tx.connection.execute("select pg_sleep(1)", timeout=60) == "SELECT 1"
    assert asked
    assert True not in asked


async def test_connections_that_died_in_their_sleep_cost_one_question(
    edge: Edge, through: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with through.transaction() as one, through.transaction() as other:
        assert await one.connection.fetchval("select 1") == await other.connection.fetchval("select 1")
    monkeypatch.setattr(live_connection, "RESTED_SECONDS", 0.2)
    edge.lose()
    await asyncio.sleep(0.3)  # so long they must have rested
    with pytest.raises(PostgresError):
        await through.value("attempt_key", b"k")
    async with through.transaction() as one, through.transaction() as other:
        assert await one.connection.fetchval("select 1") == await other.connection.fetchval("select 1")


async def test_connections_are_dropped_where_not_even_a_cancel_gets_through(edge: Edge, through: Database) -> None:
    async with through.transaction() as one, through.transaction() as other:
        assert await one.connection.fetchval("select 1") == await other.connection.fetchval("select 1")
    edge.lose(new_too=True)
    async with asyncio.timeout(30):
        failed = await asyncio.gather(*(through.value("attempt_key", b"k") for _ in range(2)), return_exceptions=True)
    assert [type(error) for error in failed] == [PostgresError] * 2
    await edge.heal()
    async with asyncio.timeout(30):
        assert await through.pool.fetchval("select 1") == 1


async def test_a_listener_that_hears_nothing_any_more_is_told(edge: Edge, through: Database) -> None:
    lost = asyncio.Event()
    async with listening(through, "any", lambda _: None, lost.set), asyncio.timeout(30):
        edge.lose()
        await lost.wait()


async def test_a_transaction_that_nobody_goes_on_with_ends_and_says_that_it_may_be_tried_again(
    database: Database,
) -> None:
    shown = await database.pool.fetchval("show idle_in_transaction_session_timeout")
    assert shown == "1min"
    with pytest.raises(PostgresError):
        await _dawdle(database)


async def _dawdle(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.connection.execute("set idle_in_transaction_session_timeout = '100ms'")
        while not tx.connection.is_closed():  # noqa: ASYNC110  # the server's doing
            await asyncio.sleep(0.05)
        await tx.connection.execute("select 1")


async def test_connections_are_asked_for_signs_of_life_by_the_kernel(edge: Edge, through: Database) -> None:
    async with through.pool.acquire() as connection:
        opened = cast(Any, connection)._con._transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
