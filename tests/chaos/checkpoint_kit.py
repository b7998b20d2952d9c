"""What the tests of checkpoints do to a stack: wait for a moment, take a machine away, bring another one."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest import mock

from relight.faults import FaultPoint, arm, is_armed
from relight.stack.supervisor import ProcessSupervisor
from tests.chaos.bucket import BUCKET
from tests.chaos.stack import ChaosStack
from tests.support.orchestration import eventually

URL = f"s3://{BUCKET}/policies"
PATIENCE_SECONDS = 240


@contextmanager
def soon_lost() -> Generator[None]:
    """GPU workers that take each other for lost after seconds."""
    with mock.patch.dict(os.environ, {"RELIGHT_GPU_LOST_SECONDS": "10"}):
        yield


async def version_is_recorded(chaos: ChaosStack, run: str, version: int) -> None:
    async def check() -> bool:
        return await chaos.recorded(run) >= version

    await eventually(check, PATIENCE_SECONDS)


async def process_died_at(chaos: ChaosStack, point: FaultPoint) -> None:
    async def check() -> bool:
        return not is_armed(chaos.faults, point)

    arm(chaos.faults, point)
    await eventually(check, PATIENCE_SECONDS)


async def in_the_middle_of(chaos: ChaosStack, run: str, step: int) -> None:
    """Some rollouts of the step, or of a later one where that was over before it was seen, have ended, and some not."""

    async def check() -> bool:
        number = await chaos.database.pool.fetchval(
            "select count(*) from (select step from rollouts where run = $1 and step >= $2 group by step"
            " having count(ended_at) between 1 and count(*) - 1) as open",
            run,
            step,
        )
        return number > 0

    await eventually(check, PATIENCE_SECONDS)


async def metric(chaos: ChaosStack, run: str, name: str) -> int:
    query = "select count(*) from metrics where run = $1 and name = $2"
    return int(await chaos.database.pool.fetchval(query, run, name))


async def gone_for_good(chaos: ChaosStack) -> None:
    """The machine of the GPU worker: its processes and its disk."""
    keeper = chaos.stack.process("gpu-worker")
    keeper.kill_now()
    await eventually(lambda: has_ended(keeper))
    for folder in (chaos.stack.home / "runs").iterdir():
        shutil.rmtree(folder)


async def has_ended(keeper: ProcessSupervisor) -> bool:
    return keeper.pid is None


@asynccontextmanager
async def gpu_worker(chaos: ChaosStack, home: Path, host: str) -> AsyncGenerator[Process]:
    """A GPU worker elsewhere: another home, another name, the same Postgres and Temporal."""
    settings = chaos.stack.settings
    environment = {
        "RELIGHT_HOME": str(home),
        "RELIGHT_GPU_HOST": host,
        "RELIGHT_DATA_ROOT": str(settings.data_root),
        "RELIGHT_POSTGRES_URL": str(settings.postgres_url),
        "TEMPORAL_ADDRESS": settings.temporal_address,
        "TEMPORAL_NAMESPACE": settings.temporal_namespace,
    }
    with (home / "gpu-worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relight.cli", "gpu-worker"),
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    try:
        yield process
    except BaseException:
        print((home / "gpu-worker.log").read_text())
        raise
    finally:
        process.terminate()
        await process.wait()
