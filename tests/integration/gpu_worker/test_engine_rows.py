"""An engine's row: what it holds, and whose updates it obeys."""

from __future__ import annotations

from relight.store.database import Database
from tests.support.seeds import seed_run

HOST = "gpu-1"
ENGINE = "gpu-1/0"


async def start(database: Database, run: str) -> None:
    await database.execute("upsert_engine", ENGINE, HOST, run, "unix:/e.sock", "policy", 1)


async def load(database: Database, version: int, fence: int) -> int | None:
    return await database.value("engine_loaded", ENGINE, version, fence)


async def test_an_engine_obeys_the_newest_fence_of_its_run_only(database: Database) -> None:
    await seed_run(database, "first")
    await database.execute("upsert_host", HOST, "relight-gpu.gpu-1")
    await start(database, "first")
    assert await load(database, 0, 0) == 1
    assert await load(database, 2, 50) == 2
    assert await load(database, 1, 40) is None
    await start(database, "first")
    assert await load(database, 1, 40) is None
    assert await load(database, 2, 50) == 3


async def test_an_engine_that_goes_over_to_another_run_starts_with_its_given_model(database: Database) -> None:
    await seed_run(database, "first")
    await seed_run(database, "second")
    await database.execute("upsert_host", HOST, "relight-gpu.gpu-1")
    await start(database, "first")
    await load(database, 3, 70)
    await start(database, "second")
    assert await load(database, 0, 0) == 2
    row = await database.pool.fetchrow("select state, version, run from engines where engine_id = $1", ENGINE)
    assert (row["state"], row["version"], row["run"]) == ("ready", 0, "second")
