"""What a process says about itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from relight.observability import process_reports
from relight.observability.process_reports import Doing
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.types.payloads import StepInput
from relight.types.store import Gpu
from relight.types.wire import WorkerReport


class Held(ActivityInboundInterceptor):
    """An activity that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self.begun.set()
        await self.let_go.wait()
        raise ValueError("it fails")


async def test_a_process_reports_its_activity_with_run_and_step_until_it_has_failed() -> None:
    doing, held, step_input = Doing(), Held(), StepInput(run="r", epoch=1, step=3)
    inbound = ActivityInterceptor(60.0, doing).intercept_activity(held)
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, activity_type="update_policy")
    call = ExecuteActivityInput(fn=held.execute_activity, args=[step_input], executor=None, headers={})
    running = asyncio.create_task(environment.run(inbound.execute_activity, call))
    await held.begun.wait()
    assert doing.texts == ["update_policy of run r, step 3"]
    assert process_reports.own_report("gpu-worker", doing).status == "busy"
    held.let_go.set()
    with pytest.raises(ValueError, match="it fails"):
        await running
    assert doing.texts == []
    assert process_reports.own_report("gpu-worker", doing).status == "idle"


async def test_a_process_reports_when_it_becomes_busy_or_idle_and_periodically() -> None:
    doing, reports = Doing(), asyncio.Queue[WorkerReport]()

    def report() -> WorkerReport:
        return process_reports.own_report("runner", doing)

    keeping = asyncio.create_task(process_reports.keep_reporting(reports.put, report, doing, (0.0, 3600.0)))
    async with asyncio.timeout(20):
        assert (await reports.get()).doing == []
        with doing.at("a", "a"):
            assert (await reports.get()).current_rollout_id == "a"
        assert (await reports.get()).status == "idle"
    keeping.cancel()
    keeping = asyncio.create_task(process_reports.keep_reporting(reports.put, report, doing, (0.0, 0.01)))
    with doing.at("b"):
        async with asyncio.timeout(20):
            assert [(await reports.get()).doing for _ in range(3)] == [["b"]] * 3
    keeping.cancel()


def test_memory_includes_child_processes() -> None:
    alone = process_reports.memory_bytes(os.getpid())
    hungry = "held = bytes(range(256)) * 400_000; print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hungry], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "up\n"
        assert process_reports.memory_bytes(os.getpid()) - alone > 90_000_000
        child.communicate("\n")
    assert process_reports.memory_bytes(child.pid) == 0


async def test_gpus_are_those_of_the_driver_and_none_without_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await process_reports.find_gpus() == []
    driver = tmp_path / "nvidia-smi"
    script = ["#!/bin/sh", '[ "$3 $4" = "-i 0,1" ] || exit 6', 'echo "NVIDIA H100 80GB HBM3, 81559"', 'echo "A, B, 12"']
    driver.write_text("\n".join(script))
    driver.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    mib = 1024**2
    found = [Gpu(name="NVIDIA H100 80GB HBM3", memory_bytes=81559 * mib), Gpu(name="A, B", memory_bytes=12 * mib)]
    assert await process_reports.find_gpus() == found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert await process_reports.find_gpus() == []


async def test_a_process_without_a_visible_gpu_has_none_and_one_whose_driver_hangs_continues_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n[ -e \"$0.stuck\" ] && exec sleep 60\necho 'NVIDIA L4, 23034'")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert await process_reports.find_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    driver.with_suffix(".stuck").write_text("")
    async with asyncio.timeout(20):
        assert await process_reports.find_gpus(within_seconds=0.2) == []
