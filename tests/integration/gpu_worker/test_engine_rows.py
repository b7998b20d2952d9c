"""An engine's row: what it holds, and whose updates it obeys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relight.cli.progress import summary_lines
from relight.gpu_worker.host import GpuHost
from relight.settings import Settings
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.types.names import POLICY
from relight.types.payloads import RunRequest
from tests.rules.host import gpu_host, prepared
from tests.rules.kit import begin
from tests.support.orchestration import eventually
from tests.support.seeds import seed_run

HOST = "gpu-1"
ENGINE = "gpu-1/0"


async def start(database: Database, run: str) -> None:
    await database.execute("upsert_engine", ENGINE, HOST, run, POLICY, "unix:/e.sock", POLICY, 1)


async def load(database: Database, version: int, fence: int) -> int | None:
    return await database.value("engine_loaded", ENGINE, version, fence)


async def test_an_engine_follows_the_newest_fence_of_its_run_only(database: Database) -> None:
    await seed_run(database, "first")
    await database.execute("upsert_host", HOST, "relight-gpu.gpu-1")
    await start(database, "first")
    assert await load(database, 0, 0) == 1
    assert await load(database, 2, 50) == 2
    assert await load(database, 1, 40) is None
    await start(database, "first")
    assert await load(database, 1, 40) is None
    assert await load(database, 2, 50) == 3


async def test_an_engine_that_changes_to_another_run_starts_with_that_runs_given_model(database: Database) -> None:
    await seed_run(database, "first")
    await seed_run(database, "second")
    await database.execute("upsert_host", HOST, "relight-gpu.gpu-1")
    await start(database, "first")
    await load(database, 3, 70)
    await start(database, "second")
    assert await load(database, 0, 0) == 2
    row = await database.pool.fetchrow("select state, version, run from engines where engine_id = $1", ENGINE)
    assert (row["state"], row["version"], row["run"]) == ("ready", 0, "second")


async def test_an_engine_that_its_host_stops_is_shown_as_stopped_with_its_last_version(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "ended")
    async with gpu_host(database, tmp_path, run) as host:
        await run.plan(1)
        await run.play_all(1)
        await run.advance(1)
        await host.update(run.step_input(1))
        shown = (await RunViews(database).cluster()).engines[0]
        assert (shown.state, shown.version) == ("ready", 1)
        await host.release(RunRequest(run=run.name, epoch=run.epoch))
        shown = (await RunViews(database).cluster()).engines[0]
        assert (shown.state, shown.version) == ("stopped", 1)
        assert "host-a/0 stopped v1" in "\n".join(summary_lines(await RunViews(database).run(run.name)))


async def test_an_engine_that_is_stopped_while_it_starts_again_shows_its_last_version_and_one_without_any_shows_none(
    database: Database,
) -> None:
    await seed_run(database, "first", agent="calculator", model="model", algorithm={"name": "grpo"})
    await database.execute("upsert_host", HOST, "relight-gpu.gpu-1")
    await start(database, "first")
    await database.execute("set_engine_state", ENGINE, "stopped")
    assert summary_lines(await RunViews(database).run("first"))[-1].endswith("gpu-1/0 stopped")
    await start(database, "first")
    await load(database, 4, 50)
    await start(database, "first")
    [shown] = (await RunViews(database).cluster()).engines
    assert (shown.state, shown.version) == ("starting", None)
    await database.execute("set_engine_state", ENGINE, "dead")
    [shown] = (await RunViews(database).cluster()).engines
    assert (shown.state, shown.version) == ("dead", 4)


@pytest.mark.parametrize("how", ["ended", "killed"])
async def test_no_temporary_file_of_a_trainer_or_engine_remains(database: Database, tmp_path: Path, how: str) -> None:
    run = await begin(database, tmp_path, "tidy")
    async with gpu_host(database, tmp_path, run) as host:
        assert host.service is not None
        work, sockets = host.service.folder / "trainer", host.service.engines.socket_path.parent
        assert len(list(work.glob("rendezvous-*"))) == 1
        if how == "killed":  # and the GPU worker with it: what is left goes at the next start
            (work / "rendezvous-of-a-dead-worker").mkdir()
            assert host.service.trainer is not None
            await host.service.trainer.kill()
            await prepared(host, run)
            assert len(list(work.glob("rendezvous-*"))) == 1
        await host.release(RunRequest(run=run.name, epoch=run.epoch))
        assert list(work.glob("rendezvous-*")) == []
        assert list(sockets.iterdir()) == []


async def test_a_gpu_worker_that_was_killed_shows_no_engine_as_ready_when_it_is_back_and_its_run_is_over(
    database: Database, tmp_path: Path
) -> None:
    await seed_run(database, "over")
    host = GpuHost(database, Settings(home=tmp_path, data_root=tmp_path), HOST, f"relight-gpu.{HOST}")
    await host.start()
    await host.claim(RunRequest(run="over", epoch=1))
    await start(database, "over")
    await load(database, 3, 70)
    await database.execute("finish_run", "over", "cancelled", None)
    again = GpuHost(database, Settings(home=tmp_path, data_root=tmp_path), HOST, f"relight-gpu.{HOST}")
    await again.start()
    (engine,) = (await RunViews(database).cluster()).engines
    assert (engine.state, engine.version) == ("stopped", 3)
    await database.pool.execute("update runs set finished_at = now() - interval '1 hour'")
    beating = asyncio.create_task(again.keep_reporting_alive())

    async def is_idle() -> bool:
        row = await database.pool.fetchrow("select run, state from gpu_hosts")
        return tuple(row) == (None, "idle")

    await eventually(is_idle)
    beating.cancel()
