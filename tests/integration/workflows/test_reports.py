"""What the processes of the platform report: real runner, orchestrator and GPU worker, on a real store and Temporal."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from temporalio.client import Client

import relight
from relight.cli import output
from relight.cli.status import status
from relight.gpu_worker import worker as gpu_worker
from relight.runner import worker as runner
from relight.settings import Settings
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.worker import orchestrator
from tests.support.gateway import listening_gateway
from tests.support.orchestration import cluster, eventually, run_file, write_tasks
from tests.support.store_service import TOKEN, store_service

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
PATIENT = """
import asyncio
from pathlib import Path

async def patient(task):
    while not Path({go!r}).exists():
        await asyncio.sleep(0.05)
    return 1.0
"""


@asynccontextmanager
async def under_way(*services: Any) -> AsyncGenerator[None]:
    tasks = [asyncio.create_task(service) for service in services]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def workers_of(url: str, **query: Any) -> list[dict[str, Any]]:
    """As 0.3's clients ask for them."""
    asked = f"{url}/v1/agl/workers/search"
    async with aiohttp.ClientSession(headers=HEADERS) as session, session.post(asked, json=query) as answer:
        return (await answer.json())["items"]


async def reported(url: str, kind: str, state: str) -> dict[str, Any] | None:
    """The worker of this kind and state, if there is one."""
    found = [worker for worker in await workers_of(url, status_in=[state]) if worker["kind"] == kind]
    return found[0] if found else None


async def check_idle_processes(url: str) -> None:
    for kind, queues in (
        ("runner", ["told.patient"]),
        ("orchestrator", ["told-orchestrator"]),
        ("gpu-worker", ["told-gpu", "told-gpu.h1"]),
    ):
        report = await eventually(lambda kind=kind: reported(url, kind, "idle"))
        assert (report["queues"], report["version"], report["pid"]) == (queues, relight.__version__, os.getpid())
        assert (report["host"], report["doing"], report["current_rollout_id"]) == (platform.node(), [], None)
        assert report["memory_bytes"] > 10 * 1024**2


async def busy_with_four(url: str, database: Database) -> dict[str, Any]:
    """The runner's report while it runs the four attempts of run `told`."""

    async def at_all_four() -> dict[str, Any] | None:
        report = await reported(url, "runner", "busy")
        return report if report and len(report["doing"]) == 4 else None

    busy = await eventually(at_all_four)
    assert sorted(busy["doing"]) == [f"told-s0001-g00-i{index}" for index in range(4)]
    assert busy["current_rollout_id"] == busy["doing"][-1]
    attempt = await database.pool.fetchrow(
        "select attempt_id, extract(epoch from started_at)::float8 as at from attempts where rollout_id = $1",
        busy["current_rollout_id"],
    )
    assert busy["current_attempt_id"] == attempt["attempt_id"]
    assert busy["last_dequeue_time"] == pytest.approx(attempt["at"])
    assert busy["last_busy_time"] >= busy["last_idle_time"]
    return busy


async def check_status(busy: dict[str, Any], flags: dict[str, Any], output_of: pytest.CaptureFixture[str]) -> None:
    """`relight status` shows that runner to people and to programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "current", output.GlobalOptions(flags))
        await status()
        shown = output_of.readouterr().out
        assert any("runner" in line and "busy" in line and busy["doing"][-1] in line for line in shown.splitlines())
        patch.setattr(output, "current", output.GlobalOptions(flags, json=True))
        await status()
        (line,) = [json.loads(line) for line in output_of.readouterr().out.splitlines()]
    (seen,) = [worker for worker in line["cluster"]["workers"] if worker["kind"] == "runner"]
    assert (seen["status"], seen["doing"], seen["queues"]) == ("busy", busy["doing"], ["told.patient"])


async def test_runner_orchestrator_and_gpu_worker_report_their_activity_and_host(
    temporal: Client, temporal_address: str, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tasks(tmp_path, count=2)
    served, go = tmp_path / "served.py", tmp_path / "go"
    served.write_text(PATIENT.format(go=str(go)))
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    async with (
        listening_gateway(store) as gateway,
        store_service(store, database) as url,
        cluster(temporal, database, tmp_path) as stack,
    ):
        flags: dict[str, Any] = {"token": TOKEN, "store_url": url, "temporal_address": temporal_address}
        queues: dict[str, Any] = {"runner_queue": "told", "orchestrator_queue": "told-orchestrator"}
        own: dict[str, Any] = {"gateway_url": gateway.origin, "gpu_queue": "told-gpu", "gpu_host": "h1"}
        settings = Settings(**flags, **queues, **own, home=tmp_path / "home", postgres_url=database.url)
        async with under_way(
            runner.serve(settings, [f"{served}:patient"]), orchestrator.serve(settings), gpu_worker.serve(settings)
        ):
            await check_idle_processes(url)
            file = run_file(agent="patient", runner_queue="told", steps=1, batch_size=1, data={"train": "train.jsonl"})
            handle = await stack.start("told", file)
            busy = await busy_with_four(url, database)
            await check_status(busy, {**flags, "home": tmp_path}, capsys)
            go.touch()
            await handle.result()
            idle = await eventually(lambda: reported(url, "runner", "idle"))
            assert (idle["doing"], idle["current_rollout_id"], idle["current_attempt_id"]) == ([], None, None)
            assert idle["last_idle_time"] >= idle["last_busy_time"]
