"""The rows of the platform's processes: what the store service says of itself, and when rows of others go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from relight.store.database import Database
from relight.store.queue import sweeper
from relight.store.runs.views import RunViews
from relight.store.workers import register_worker
from relight.store_api import server
from relight.types.wire import WorkerReport
from tests.integration.store.test_service import settings_for
from tests.support.orchestration import eventually
from tests.support.store_service import TOKEN


@asynccontextmanager
async def served(database_url: str) -> AsyncGenerator[str]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(
        server.serve(
            settings_for(database_url), port=0, on_ready=ready.set_result, stop=stop, report_seconds=(0.05, 0.05)
        )
    )
    try:
        yield await ready
    finally:
        stop.set()
        await serving


async def test_the_store_service_is_busy_while_it_serves_and_idle_when_it_only_receives_reports(
    database: Database, database_url: str
) -> None:
    report = WorkerReport(worker_id="r", kind="runner", host="h", pid=7).model_dump(mode="json")

    async def row() -> Any:
        return await database.pool.fetchrow("select * from workers where kind = 'store'")

    async def is_there() -> None:
        """A process says that it is there, and monitoring asks."""
        async with session.post("/v1/relight/workers", json=report) as answer:
            assert answer.status == 200
        async with session.get("/healthz"), session.get("/metrics") as answer:
            assert answer.status == 200

    async def ask() -> None:
        async with session.get("/v1/agl/rollouts") as answer:
            assert answer.status == 200

    async def idle() -> bool:
        return (await row())["status"] == "idle"

    async with (
        served(database_url) as url,
        aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        await is_there()
        begun = await row()
        first = await eventually(lambda: _later(row, begun))
        second = await eventually(lambda: _later(row, first))  # all of it was there before this one was made
        assert (second["status"], second["busy_at"]) == ("idle", None)
        await ask()
        served_at = (await eventually(lambda: _having(row, "busy_at")))["busy_at"]
        await eventually(idle)  # a report during that request counted it, and the next one counts it again
        async with database.transaction() as tx:
            await tx.connection.execute("lock table rollouts in access exclusive mode")
            asking = asyncio.create_task(ask())
            busy = await eventually(lambda: _having(row, "doing"))
            assert (busy["status"], busy["doing"]) == ("busy", ["requests: 1"])
        await asking
        assert served_at <= busy["busy_at"]

        await eventually(idle)


async def _later(row: Callable[[], Awaitable[Any]], than: Any) -> Any:
    found = await row()
    return found if found["last_heartbeat"] > than["last_heartbeat"] else None


async def _having(row: Callable[[], Awaitable[Any]], column: str) -> Any:
    found = await row()
    return found if found[column] else None


async def test_a_process_without_a_report_for_an_hour_is_not_shown_and_its_row_is_deleted(database: Database) -> None:
    for name in ("here", "silent", "gone"):
        await register_worker(database, WorkerReport(worker_id=name, kind="runner", host="h", pid=7))
    await database.execute("worker_heartbeat", "of another", {})
    silent = "update workers set last_heartbeat = now() - $2::text::interval where worker_id = any($1)"
    await database.pool.execute(silent, ["silent"], "59 min")
    await database.pool.execute(silent, ["gone", "of another"], "61 min")

    async def shown() -> dict[str, str]:
        return {worker.worker_id: worker.status for worker in (await RunViews(database).cluster()).workers}

    assert await shown() == {"here": "idle", "silent": "unknown", "of another": "unknown"}
    sweeping = asyncio.create_task(sweeper.keep_sweeping(database))

    async def removed() -> bool:
        return await database.pool.fetchval("select count(*) from workers where worker_id = 'gone'") == 0

    try:
        await eventually(removed)
    finally:
        sweeping.cancel()
    assert await database.pool.fetchval("select count(*) from workers") == 3
    await register_worker(database, WorkerReport(worker_id="gone", kind="runner", host="h", pid=8))
    assert (await shown())["gone"] == "idle"
