"""Temporal's own cancel and terminate of a rollout that a real runner plays in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import SecretStr
from temporalio.client import Client

from relight.runner.worker import serve
from relight.settings import Settings
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types import names
from tests.integration.operators.kit import Gate
from tests.support.orchestration import cluster, eventually, run_file, write_tasks
from tests.support.pid_namespaces import pid_of
from tests.support.store_service import TOKEN, store_service

AGENT = """
import os, pathlib, time

def slow(task, rollout):
    folder = pathlib.Path({folder!r})
    noted = f"{{os.getpid()}}:{{os.stat('/proc/self/ns/pid').st_ino}}"
    (folder / rollout.rollout_id).write_text(noted)
    while not (folder / "go-on").exists():
        time.sleep(0.05)
    return 1.0
"""
SECONDS = 5


def ended(database: Database, rollout_id: str) -> Callable[[], Awaitable[tuple[str, ...] | None]]:
    """Status and class of a rollout whose attempt has ended too."""
    text = """
    select r.status, r.failure_class, a.failure_class as attempt from rollouts r join attempts a using (rollout_id)
    where rollout_id = $1 and r.ended_at is not null and a.ended_at is not null
    """

    async def query() -> tuple[str, ...] | None:
        row = await database.pool.fetchrow(text, rollout_id)
        return None if row is None else tuple(row)

    return query


async def test_a_rollout_that_is_cancelled_or_terminated_ends_at_once_while_its_batch_continues(
    temporal: Client, temporal_address: str, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    agent = tmp_path / "agents.py"
    agent.write_text(AGENT.format(folder=str(tmp_path)))
    file = run_file(agent="slow", steps=1, batch_size=1, group_size=4, data="train.jsonl")
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    async with store_service(store, database) as url, cluster(temporal, database, tmp_path) as stack:
        settings = Settings(
            temporal_address=temporal_address,
            store_url=url,
            gateway_url=url,
            token=SecretStr(TOKEN),
            allow_path=[str(tmp_path)],
        )
        running = asyncio.create_task(serve(settings, [f"{agent}:slow"]))
        try:
            handle = await stack.start("ended", file)

            async def all_run() -> bool:
                return all((tmp_path / f"ended-s0001-g00-i{index}").exists() for index in range(4))

            await eventually(all_run, 60)
            noted = (tmp_path / "ended-s0001-g00-i0").read_text()
            assert pid_of(noted) is not None
            cancelled = temporal.get_workflow_handle("rollout/ended-s0001-g00-i0")

            async def it_has_said_that_it_lives() -> bool:
                pending = (await cancelled.describe()).raw_description.pending_activities
                return pending[0].HasField("last_heartbeat_time")

            await eventually(it_has_said_that_it_lives)  # the next time that it does so is what the cancel waits for
            await cancelled.cancel()
            found = await eventually(ended(database, "ended-s0001-g00-i0"), SECONDS)
            assert found == ("cancelled", "cancelled", "cancelled")
            assert pid_of(noted) is None
            await temporal.get_workflow_handle("rollout/ended-s0001-g00-i1").terminate("for the test")
            found = await eventually(ended(database, "ended-s0001-g00-i1"), SECONDS)
            assert found == ("failed", "infrastructure", "infrastructure")
            assert await database.pool.fetchval("select count(*) from rollouts where ended_at is null") == 2
            (tmp_path / "go-on").touch()
            result = await handle.result()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    assert result["counters"] == {"rollouts": 5, "retried": 0, "cancelled": 1, "infrastructure": 1}
    attempts = await database.pool.fetch("select attempts from rollouts where rollout_id like 'ended-%' order by 1")
    assert [row["attempts"] for row in attempts] == [1] * 5


async def test_a_rollout_that_is_cancelled_before_its_workflow_begins_never_runs(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    """As where all orchestrators are away when `temporal workflow signal --name cancel` comes."""
    write_tasks(tmp_path)
    gate = Gate(lambda attempt: True)
    async with cluster(temporal, database, tmp_path, gate) as stack:
        await stack.start("early", run_file(steps=1, batch_size=1, data="train.jsonl", concurrency=1))
        await gate.until(lambda: len(gate.held) == 1)
        (waiting,) = sorted({f"early-s0001-g00-i{index}" for index in range(4)} - gate.held)[:1]
        handle = await temporal.start_workflow(
            names.ROLLOUT_WORKFLOW,
            {"rollout_id": waiting, "queue": "relight-runner.echo", "run": "early", "epoch": 1},
            id=f"rollout/{waiting}",
            task_queue=names.ORCHESTRATOR_QUEUE,
            start_signal=names.CANCEL,
            start_signal_args=[{"reason": "too early", "actor": "ada"}],
        )
        result = await handle.result()
        assert (result["failure_class"], result["message"]) == ("cancelled", "too early")
        gate.open.set()
        await temporal.get_workflow_handle("train/early").result()
    assert waiting not in stack.runner.ran


@pytest.mark.parametrize("how", ["terminate", "cancel"])
@pytest.mark.parametrize("what", ["eval-0", "eval-0/batch-0"])
async def test_an_evaluation_that_a_client_terminates_is_started_again_and_its_run_continues(
    temporal: Client, database: Database, tmp_path: Path, what: str, how: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(lambda attempt: attempt.rollout_id.endswith("e0000-g09-i0"))
    run = f"{how}-{what.replace('/', '-')}"
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start(run, run_file(steps=1))
        await gate.until(lambda: len(gate.held) == 1)

        async def nine_have_ended() -> bool:
            return await database.pool.fetchval("select count(*) from rollouts where status = 'succeeded'") == 9

        await eventually(nine_have_ended)
        child = temporal.get_workflow_handle(f"train/{run}/{what}")
        first = (await child.describe()).run_id
        await (child.terminate("for the test") if how == "terminate" else child.cancel())

        async def started_again() -> bool:
            return (await child.describe()).run_id != first

        await eventually(started_again)
        gate.open.set()
        result = await handle.result()
    assert (result["status"], sorted(result["evaluations"])) == ("finished", ["0", "1"])
    ended = "select status, count(*) from rollouts where kind = 'eval' and step = 0 group by status"
    assert [tuple(row) for row in await database.pool.fetch(ended)] == [("succeeded", 10)]
    assert {number for rollout, number in stack.runner.ran.items() if not rollout.endswith("e0000-g09-i0")} == {1}
