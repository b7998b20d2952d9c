"""The store service is told to end: what has reached it is committed and answered, a second signal ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from relight.store.attempts.client import StoreClient
from relight.store.database import Database
from relight.types.wire import FinishRequest, OpenRequest
from tests.support.orchestration import eventually
from tests.support.processes import STORE, TOKEN, free_port
from tests.support.seeds import seed_rollout, seed_run

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@asynccontextmanager
async def store_service(database_url: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """The service as a child of this process, which gets its exit code; it answers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {"RELIGHT_POSTGRES_URL": database_url, "RELIGHT_STORE_URL": url, "RELIGHT_TOKEN": TOKEN}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STORE, str(port), env=environment)

    async def answers() -> bool:
        return await asyncio.to_thread(listens, url)

    try:
        await eventually(answers, 60)
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def listens(url: str) -> bool:
    """Whether connections are accepted there."""
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname or "", address.port or 0), timeout=5).close()
    except OSError:
        return False
    return True


async def test_a_commit_in_progress_is_answered_before_the_service_ends(database: Database, database_url: str) -> None:
    await seed_run(database)
    await seed_rollout(database, "ro")
    async with (
        store_service(database_url) as (process, url),
        StoreClient(url, TOKEN, retry_seconds=0) as store,
        asyncio.timeout(60),
    ):
        asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
        attempt = (await store.open_attempt(asked)).attempt
        assert attempt is not None
        async with database.transaction() as tx:
            await tx.connection.execute("select from rollouts where rollout_id = 'ro' for update")
            end = FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=1.0)
            finishing = asyncio.create_task(store.finish_attempt(end))

            async def blocked() -> bool:
                return await database.pool.fetchval(WAITING) == 1

            await eventually(blocked)
            process.terminate()
        assert (await finishing).succeeded
        assert await process.wait() == 0
    row = await database.pool.fetchrow("select status, reward from rollouts where rollout_id = 'ro'")
    assert tuple(row) == ("succeeded", 1.0)


async def test_a_second_signal_ends_it_at_once(database: Database, database_url: str) -> None:
    await seed_run(database)
    await seed_rollout(database, "ro")
    async with (
        store_service(database_url) as (process, url),
        StoreClient(url, TOKEN, retry_seconds=0) as store,
        asyncio.timeout(60),
    ):
        async with database.transaction() as tx:
            await tx.connection.execute("select from rollouts where rollout_id = 'ro' for update")
            asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
            opening = asyncio.create_task(store.open_attempt(asked))

            async def blocked() -> bool:
                return await database.pool.fetchval(WAITING) == 1

            await eventually(blocked)
            process.terminate()

            async def drains() -> bool:
                return not await asyncio.to_thread(listens, url)

            await eventually(drains)
            process.terminate()
            assert await process.wait() == 128 + signal.SIGTERM
        await asyncio.gather(opening, return_exceptions=True)
