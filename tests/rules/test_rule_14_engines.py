"""Rule 14: the GPU worker process keeps engines up and on the newest recorded version, whatever goes away meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from relight.errors import PostgresError
from relight.gpu_worker import engine_supervisor
from relight.store.database import Database
from tests.rules.host import gpu_host, pid_of_engine
from tests.rules.kit import begin


class Outage:
    """Postgres as the engine's keeper sees it: away, or worse, for some looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        self.over = asyncio.Event()
        self.real = engine_supervisor.newest_version
        monkeypatch.setattr(engine_supervisor, "newest_version", self.newest_version)

    async def newest_version(self, db: Database, run: str) -> Any:
        if self.errors:
            error = self.errors.pop()
            if not self.errors:
                self.over.set()
            raise error
        return await self.real(db, run)


async def test_an_engine_keeps_serving_while_postgres_is_down_and_loads_new_versions_afterwards(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await begin(database, tmp_path, "served")
    outage = Outage(monkeypatch)
    async with gpu_host(database, tmp_path, run) as host:
        engine = pid_of_engine(host)
        outage.errors = [PostgresError(), PostgresError(), PostgresError()]
        await asyncio.wait_for(outage.over.wait(), 30)
        await run.plan(1)
        await run.play_all(1)
        await run.advance(1)
        await asyncio.wait_for(host.update(run.step_input(1)), 60)
        assert pid_of_engine(host) == engine
    versions = await database.pool.fetch("select version from engine_loads where run = 'served' order by load")
    assert [row["version"] for row in versions if row["version"]] == [1]


@pytest.mark.parametrize("cause", ["the engine is killed", "an unexpected error"])
async def test_an_engine_that_ends_for_any_reason_is_replaced_by_one_with_the_newest_version(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    run = await begin(database, tmp_path, "back")
    outage = Outage(monkeypatch)
    async with gpu_host(database, tmp_path, run) as host:
        await run.plan(1)
        await run.play_all(1)
        await run.advance(1)
        await host.update(run.step_input(1))
        engine = pid_of_engine(host)
        if cause == "the engine is killed":
            os.kill(engine, signal.SIGKILL)
        else:
            outage.errors = [asyncpg.UndefinedTableError("relation is gone")]
            await asyncio.wait_for(outage.over.wait(), 30)
        assert host.service is not None
        keeper = host.service.engines
        async with asyncio.timeout(60):
            while keeper.version != 1 or keeper.engine is None or keeper.engine.pids[:1] == [engine]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    loads = await database.pool.fetch("select version from engine_loads where run = 'back' order by load")
    assert loads[-1]["version"] == 1
