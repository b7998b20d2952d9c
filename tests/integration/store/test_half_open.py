"""Connections to Postgres that look alive and are dead: a command on one gets an error, and the next has a new one."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast
from urllib.parse import parse_qs

import asyncpg
import pytest

from relight.errors import PostgresError
from relight.store import database as databases
from relight.store.database import Database
from relight.store.live_connection import LiveConnection, Session
from relight.store.notifications import listening
from tests.chaos.network import BOTH, LOOPBACK, Edge, Target, Way


class Impatient(LiveConnection):
    """With short timeouts."""

    command_seconds = 2.0
    cancel_seconds = 0.5
    ping_seconds = 0.2


class Asking(Impatient):
    """Checks late commands soon."""

    late_seconds = 0.2
    on_its_way_seconds = 0.1
    found_idle: ClassVar[list[bool | None]] = []

    async def end_idle(self, session: Session) -> bool | None:
        self.found_idle.append(await super().end_idle(session))
        return self.found_idle[-1]


class SoonRested(Impatient):
    """Checks pooled connections after a short idle time."""

    rested_seconds = 0.2


@asynccontextmanager
async def connected(edge: Edge, database_url: str, kind: type[LiveConnection]) -> AsyncGenerator[Database]:
    """Postgres at the end of that connection."""
    path, _, query = database_url.partition("?")
    url = f"{path.replace('@', f'@{LOOPBACK}:{edge.port}')}?sslmode=disable&passfile={parse_qs(query)['passfile'][0]}"
    database = await Database.connect(url, max_size=2, kind=kind)
    yield database
    await database.close()


@pytest.fixture
async def edge(database_url: str) -> AsyncGenerator[Edge]:
    """A connection to Postgres that can be cut."""
    edge = Edge("test->postgres", random.Random(1))
    edge.target = Target.of(database_url)
    await edge.listen()
    yield edge
    await edge.close()


@pytest.fixture
async def through(edge: Edge, database_url: str) -> AsyncGenerator[Database]:
    async with connected(edge, database_url, Impatient) as database:
        yield database


@pytest.fixture
async def asking(edge: Edge, database_url: str) -> AsyncGenerator[Database]:
    Asking.found_idle.clear()
    async with connected(edge, database_url, Asking) as database:
        yield database


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
    edge: Edge, asking: Database, ways: frozenset[Way]
) -> None:
    assert await asking.pool.fetchval("select 1") == 1
    edge.lose(frozenset(ways))
    async with asyncio.timeout(20):
        with pytest.raises(PostgresError):
            async with databases.translated():
                await asking.pool.fetchval("select 2", timeout=600)


async def test_the_locks_of_a_transaction_whose_connection_died_are_free_as_soon_as_its_command_is_given_up(
    edge: Edge, asking: Database, database_url: str
) -> None:
    with pytest.raises(PostgresError):
        await _lose_while_locking(edge, asking)
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


async def test_a_command_that_postgres_executes_is_waited_for(
    asking: Database,
) -> None:
    async with asking.transaction() as tx:
        assert await tx.connection.fetchval("select 1 from pg_sleep(1.5)", timeout=60) == 1
        assert await tx.connection.execute("select pg_sleep(1)", timeout=60) == "SELECT 1"
    assert Asking.found_idle
    assert True not in Asking.found_idle


async def test_connections_that_died_while_idle_cost_one_query(edge: Edge, database_url: str) -> None:
    async with connected(edge, database_url, SoonRested) as database:
        async with database.transaction() as one, database.transaction() as other:
            assert await one.connection.fetchval("select 1") == await other.connection.fetchval("select 1")
        edge.lose()
        await asyncio.sleep(0.3)  # they must have been idle for longer than `rested_seconds`
        with pytest.raises(PostgresError):
            await database.value("attempt_key", b"k")
        async with database.transaction() as one, database.transaction() as other:
            assert await one.connection.fetchval("select 1") == await other.connection.fetchval("select 1")


async def test_connections_are_dropped_if_a_cancel_does_not_arrive_either(edge: Edge, through: Database) -> None:
    async with through.transaction() as one, through.transaction() as other:
        assert await one.connection.fetchval("select 1") == await other.connection.fetchval("select 1")
    edge.lose(new_too=True)
    async with asyncio.timeout(30):
        failed = await asyncio.gather(*(through.value("attempt_key", b"k") for _ in range(2)), return_exceptions=True)
    assert [type(error) for error in failed] == [PostgresError] * 2
    await edge.heal()
    async with asyncio.timeout(30):
        assert await through.pool.fetchval("select 1") == 1


async def test_a_listener_on_a_dead_connection_gets_an_error(edge: Edge, through: Database) -> None:
    lost = asyncio.Event()
    async with listening(through, "any", lambda _: None, lost.set), asyncio.timeout(30):
        edge.lose()
        await lost.wait()


async def test_an_idle_transaction_ends_with_an_error_that_permits_a_retry(
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


async def test_connections_have_tcp_keepalive(edge: Edge, through: Database) -> None:
    async with through.pool.acquire() as connection:
        opened = cast(Any, connection)._con._transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
