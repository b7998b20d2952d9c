"""When an engine goes on after new weights, and that it wakes up again however its turn on a shared GPU ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relight.errors import EngineError
from relight.gpu_worker.engine_supervisor import RESUME_TRIES
from relight.gpu_worker.host import GpuHost
from relight.store.database import Database
from tests.integration.gpu_worker.parts import failing_engine
from tests.rules.host import gpu_host, pid_of_engine
from tests.rules.kit import ManualRun, begin


class EngineFaults:
    """The calls that the engine is to fail or hold, and those that it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def fail(self, route: str) -> None:
        (self.folder / route).touch()

    def fail_always(self, route: str) -> None:
        (self.folder / f"always-{route}").touch()

    def hold(self, route: str) -> Path:
        path = self.folder / f"hold-{route}"
        path.touch()
        return path

    def times(self, route: str) -> list[float]:
        path = self.folder / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [at for at, name in calls if name == route]

    async def wait_for(self, route: str, times: int = 1) -> None:
        async with asyncio.timeout(30):
            while len(self.times(route)) < times:  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.02)


@pytest.fixture
def engine_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineFaults:
    engine_faults = EngineFaults(tmp_path / "engine_faults")
    monkeypatch.setenv(failing_engine.VARIABLE, str(engine_faults.folder))
    return engine_faults


@asynccontextmanager
async def sampled_step(database: Database, folder: Path, **changes: Any) -> AsyncGenerator[tuple[ManualRun, GpuHost]]:
    """Step 1 of a run, ready for its update."""
    run = await begin(database, folder, "turns", **changes)
    async with gpu_host(database, folder, run, engine=failing_engine.__name__) as host:
        await run.plan(1)
        await run.play_all(1)
        await run.advance(1)
        yield run, host


async def update(host: GpuHost, run: ManualRun) -> int:
    return (await asyncio.wait_for(host.update(run.step_input(1)), 30)).version


async def sample(host: GpuHost) -> None:
    """A call that ends only where the engine goes on."""
    assert host.service is not None
    connector = aiohttp.UnixConnector(path=str(host.service.engines.socket_path))
    body = {"messages": [{"role": "user", "content": "7*8?"}], "seed": 1, "max_tokens": 4, "model": "policy"}
    url = "http://engine/v1/chat/completions"
    async with (
        asyncio.timeout(30),
        aiohttp.ClientSession(connector=connector) as http,
        http.post(url, json=body) as answer,
    ):
        assert answer.status == 200


async def test_no_token_is_sampled_from_new_weights_before_their_version_is_recorded(
    database: Database, tmp_path: Path, engine_faults: EngineFaults
) -> None:
    async with sampled_step(database, tmp_path) as (run, host):
        began = time.time()
        assert await update(host, run) == 1
        await engine_faults.wait_for("resume")
    loads = await database.pool.fetch("select loaded_at from engine_loads where run = 'turns' and version = 1")
    [paused], [resumed] = ([at for at in engine_faults.times(route) if at > began] for route in ("pause", "resume"))
    assert paused < loads[0]["loaded_at"].timestamp() < resumed


async def test_an_engine_that_is_still_paused_after_its_acknowledgement_is_resumed_by_its_supervisor(
    database: Database, tmp_path: Path, engine_faults: EngineFaults
) -> None:
    async with sampled_step(database, tmp_path) as (run, host):
        engine = pid_of_engine(host)
        engine_faults.fail("resume")
        assert await update(host, run) == 1
        await engine_faults.wait_for("resume", 2)
        await sample(host)
        assert pid_of_engine(host) == engine
    versions = await database.pool.fetch("select version from engine_loads where engine_id = 'host-a/0' order by load")
    assert [row["version"] for row in versions] == [0, 1]


@pytest.mark.parametrize("key", ["enable_sleep_mode", "enable-sleep-mode"])
async def test_a_trainers_turn_that_fails_to_begin_does_not_block_the_next_one(
    database: Database, tmp_path: Path, engine_faults: EngineFaults, key: str
) -> None:
    async with sampled_step(database, tmp_path, vllm={key: True}) as (run, host):
        engine_faults.fail("sleep")
        with pytest.raises(EngineError, match="on purpose"):
            await update(host, run)
        assert len(engine_faults.times("wake_up")) == 1  # it may have fallen asleep all the same
        assert await update(host, run) == 1
        await sample(host)
        assert len(engine_faults.times("sleep")) == len(engine_faults.times("wake_up")) == 2


async def test_a_cancelled_trainers_turn_does_not_block_the_next_one_and_leaves_the_engine_awake(
    database: Database, tmp_path: Path, engine_faults: EngineFaults
) -> None:
    async with sampled_step(database, tmp_path, vllm={"enable_sleep_mode": True}) as (run, host):
        held = engine_faults.hold("sleep")
        cancelled = asyncio.create_task(host.update(run.step_input(1)))
        await engine_faults.wait_for("sleep")
        cancelled.cancel()
        held.unlink()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await update(host, run) == 1
        await sample(host)


async def test_an_engine_that_did_not_wake_up_after_a_trainers_turn_is_woken_again(
    database: Database, tmp_path: Path, engine_faults: EngineFaults
) -> None:
    async with sampled_step(database, tmp_path, vllm={"enable_sleep_mode": True}) as (run, host):
        engine = pid_of_engine(host)
        engine_faults.fail("wake_up")
        assert await update(host, run) == 1
        await sample(host)
        assert len(engine_faults.times("wake_up")) == 2
        assert pid_of_engine(host) == engine


@pytest.mark.parametrize(("route", "keys"), [("wake_up", {"enable_sleep_mode": True}), ("resume", {})])
async def test_an_engine_that_never_resumes_is_stopped_and_another_one_started(
    database: Database, tmp_path: Path, engine_faults: EngineFaults, route: str, keys: dict[str, bool]
) -> None:
    async with sampled_step(database, tmp_path, vllm=keys) as (run, host):
        engine = pid_of_engine(host)
        engine_faults.fail_always(route)
        assert await update(host, run) == 1
        assert host.service is not None
        keeper = host.service.engines
        async with asyncio.timeout(30):
            while keeper.engine is None or keeper.engine.pids[0] == engine:  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0.02)
            await keeper.wait_for(1)
        assert not await asyncio.to_thread(Path(f"/proc/{engine}").exists)
        await sample(host)
    assert len(engine_faults.times(route)) == RESUME_TRIES
