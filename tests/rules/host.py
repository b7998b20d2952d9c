"""The real GPU host, with the deterministic engine and trainer of the chaos runs as its processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from relight.gpu_worker.host import GpuHost
from relight.settings import Settings
from relight.store.database import Database
from relight.types.payloads import EngineState, RunRequest
from tests.chaos.parts import weights
from tests.rules.kit import ManualRun


@asynccontextmanager
async def gpu_host(
    database: Database, folder: Path, run: ManualRun, name: str = "host-a", engine: str = "tests.chaos.parts.engine"
) -> AsyncGenerator[GpuHost]:
    """A host that serves the run: its engine holds the given model, its trainer waits."""
    model = folder / "model"
    shutil.rmtree(model, ignore_errors=True)
    weights.make_model(model)
    with tempfile.TemporaryDirectory(prefix="relight-host-") as home:
        settings = Settings(
            home=Path(home),
            data_root=folder,
            engine_module=engine,
            trainer_module="tests.chaos.parts.trainer",
        )
        host = GpuHost(database, settings, name, f"relight-gpu.{name}")
        await host.start()
        try:
            await host.claim(RunRequest(run=run.name, epoch=1))
            await prepared(host, run)
            # Rollouts begin once all engines of a run are ready, and the one that the run began with has no process.
            await database.pool.execute("delete from engines where engine_id = $1", f"engine-of-{run.name}")
            yield host
        finally:
            await host.close()


async def prepared(host: GpuHost, run: ManualRun) -> EngineState:
    return await host.prepare(RunRequest(run=run.name, epoch=run.epoch))


def pid_of_engine(host: GpuHost) -> int:
    assert host.service is not None
    engine = host.service.engines.engine
    assert engine is not None
    return engine.pids[0]
