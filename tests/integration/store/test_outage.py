"""Postgres goes away and comes back: requests wait, nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from relight.errors import PostgresError, StoreError
from relight.stack.postgres_server import describe
from relight.store import live_connection
from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.live_connection import LiveConnection
from relight.store.notifications import listening
from tests.support.postgres import create_database, postgres_server
from tests.support.store_kit import PostgresKit, call, finish, opened
from tests.support.store_service import TOKEN, store_service


@pytest.fixture
def server_folder() -> Generator[Path]:
    """Not in pytest's own folder: any pytest that starts closes that one to others, and root's Postgres is another."""
    with tempfile.TemporaryDirectory(prefix="relight-outage-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
async def own_server(server_folder: Path) -> AsyncGenerator[tuple[str, Callable[..., None]]]:
    """A Postgres that this test may stop and start."""
    with postgres_server(server_folder, durable=True) as url:
        server = describe(server_folder)

        def control(*args: str) -> None:
            subprocess.run(
                [str(server.binaries / "pg_ctl"), "-D", str(server.data), "-w", *args],
                check=True,
                stdout=subprocess.DEVNULL,
                user=server.user,
            )

        yield url, control
        control("-m", "immediate", "stop")  # its handle only knows the process that it started itself


async def test_requests_wait_for_postgres_and_then_continue(own_server: tuple[str, Callable[..., None]]) -> None:
    url, control = own_server
    database = await Database.connect(await create_database(url))
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    await kit.add_rollout("r1")
    options = subprocess.list2cmdline(["-h", "", "-k", str(socket_folder(url))])
    async with (
        store_service(kit.store, database, retry_seconds=0.3) as service_url,
        StoreClient(service_url, TOKEN, retry_seconds=60) as client,
        StoreClient(service_url, TOKEN, retry_seconds=0.5) as short_wait,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        remote = PostgresKit(database, client)
        attempt = await opened(remote)
        await asyncio.to_thread(control, "-m", "immediate", "stop")
        async with session.get(service_url + "/readyz") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
        with pytest.raises(StoreError, match="no answer from the store service"):
            await short_wait.heartbeat(attempt.attempt_id, attempt.fence, "runner")
        async with asyncio.TaskGroup() as group:
            commits = [group.create_task(client.commit_generations([call(attempt, n, f"h{n}")])) for n in range(1, 9)]
            await asyncio.sleep(1)  # in which none is answered
            assert not any(commit.done() for commit in commits)
            await asyncio.to_thread(control, "-o", options, "-l", "/dev/null", "start")
        assert [commit.result()[0].state for commit in commits] == ["committed"] * 8
        assert (await finish(remote, attempt)).succeeded
        assert len(await kit.deliveries(attempt.attempt_id)) == 8
    await database.close()


def socket_folder(url: str) -> str:
    return url.partition("host=")[2].partition("&")[0]


async def test_closed_connections_are_replaced(postgres_kit: PostgresKit) -> None:
    async with (
        store_service(postgres_kit.store, postgres_kit.database) as url,
        StoreClient(url, TOKEN, retry_seconds=20) as client,
    ):
        kit = PostgresKit(postgres_kit.database, client)
        attempt = await opened(kit)
        for number in range(1, 6):
            await postgres_kit.database.pool.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            (result,) = await client.commit_generations([call(attempt, number, f"h{number}")])
            assert result.state == "committed"
        assert len(await kit.deliveries(attempt.attempt_id)) == 5


class OftenProbing(LiveConnection):
    """With a short interval of probes."""

    probe_seconds = 0.2


async def test_a_postgres_that_waits_for_its_sessions_ends_and_is_used_again(
    own_server: tuple[str, Callable[..., None]],
) -> None:
    """The smart shutdown waits for sessions without a limit; ours leave: idle ones, those in use, and listeners."""
    url, control = own_server
    database = await Database.connect(await create_database(url), max_size=3, kind=OftenProbing)
    lost = asyncio.Event()
    async with listening(database, "any", lambda _: None, lost.set), database.transaction() as busy:
        async with database.transaction() as idle:
            assert await idle.connection.fetchval("select 1") == 1
        stop = asyncio.create_task(asyncio.to_thread(control, "-m", "smart", "-t", "30", "stop"))
        async with asyncio.timeout(30):
            await lost.wait()
        assert await busy.connection.fetchval("select 2") == 2, "what is under way goes on to its end"
        assert not stop.done()
    await stop
    with pytest.raises(PostgresError):
        await database.value("events_now")
    options = subprocess.list2cmdline(["-h", "", "-k", str(socket_folder(url))])
    await asyncio.to_thread(control, "-o", options, "-l", "/dev/null", "start")
    assert await database.value("events_now")
    async with listening(database, "any", lambda _: None, lambda: None):
        pass
    await database.close()


async def test_only_an_error_about_shutdown_counts_as_a_refusal_of_sessions(
    own_server: tuple[str, Callable[..., None]],
) -> None:
    """One that is out of reach says nothing about the sessions that are open."""
    url, control = own_server
    assert not await live_connection.refuses_sessions(url)
    session = await asyncpg.connect(url)
    stop = asyncio.create_task(asyncio.to_thread(control, "-m", "smart", "-t", "30", "stop"))
    async with asyncio.timeout(20):
        while not await live_connection.refuses_sessions(url):  # noqa: ASYNC110  # another process' state
            await asyncio.sleep(0.05)
    await session.close()
    await stop
    assert not await live_connection.refuses_sessions(url)
    await asyncio.to_thread(
        control, "-o", subprocess.list2cmdline(["-h", "", "-k", str(socket_folder(url))]), "-l", "/dev/null", "start"
    )
