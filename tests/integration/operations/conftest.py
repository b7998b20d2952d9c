"""A database that holds a finished run, and a service over two runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from tests.integration.operations.token_bench import OTHER, Bench
from tests.support.postgres import as_role, create_database
from tests.support.seeds import RUN, seed_engine, seed_rollout, seed_run
from tests.support.small_run import play_small_run
from tests.support.store_kit import PostgresKit, opened
from tests.support.store_service import store_service


@pytest.fixture
async def finished(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Database]:
    """A database of its own with a finished run."""
    database = await Database.connect(as_role(await create_database(postgres_url)))
    await play_small_run(database, tmp_path)
    yield database
    await database.close()


@pytest.fixture
async def bench(database: Database) -> AsyncGenerator[Bench]:
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    for run, rollout_id in ((RUN, "r1"), (OTHER, "o1")):
        await seed_run(database, run, agent="calculator")
        await seed_engine(database, f"engine-{run}", run)
        await seed_rollout(database, rollout_id, run)
    await database.pool.execute(
        "insert into resources (resources_id, resources) values ('rs-other', '{}');"
        "update rollouts set resources_id = 'rs-other' where run = 'other';"
        "insert into commands (command_id, run, action, value, actor) values"
        " ('c1', 'demo', 'pause', '{}', 'x'), ('c2', 'other', 'pause', '{}', 'x')"
    )
    async with store_service(kit.store, database) as url, aiohttp.ClientSession() as session:
        yield Bench(database, session, url, await opened(kit, "r1"), await opened(kit, "o1"))
