"""Commands over HTTP that were done, and whose orchestrator died before it could say so: the next one says so."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.store.database import Database
from relight.types.names import train_id
from relight.types.wire import FinishRequest, OpenedAttempt
from relight.worker.reconciler import reconcile
from tests.integration.operators.kit import Gate, at, audit, fails, run_is, status_of
from tests.integration.operators.test_over_http import Http, doing_commands, http
from tests.support.orchestration import cluster, eventually, run_file, write_tasks

DYING = """
import asyncio, os, signal, sys
from relight.operators import operator
from relight.store.database import Database
from relight.operators import command_loop
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

async def main(url, address, when):
    start = operator.start_run
    async def started(*values, **options):
        await start(*values, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    async def finish(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "started":
        operator.start_run = started
    command_loop.command_requests.finish_request = finish
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    await command_loop.keep_doing_commands(await Database.connect(url), client, "relight")

asyncio.run(main(*sys.argv[1:]))
"""
"""An orchestrator that is killed once it has started a workflow, or when it is about to answer."""


async def dies(database: Database, database_url: str, temporal_address: str, when: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DYING, database_url, temporal_address, when, env=dict(os.environ), cwd=Path.cwd()
    )
    assert await asyncio.wait_for(child.wait(), 120) == -signal.SIGKILL
    await database.pool.execute("update commands set claimed_until = now()")  # a minute later


async def answer_of(api: Http, key: str) -> dict[str, Any]:
    async def ask() -> Any:
        _, found = await api.get(f"/commands/{key}")
        return found if found["done_at"] else None

    return await eventually(ask)


@pytest.mark.parametrize(("when", "paused"), [("started", False), ("started", True), ("answered", False)])
async def test_a_resume_that_drove_a_run_again_is_done_though_its_orchestrator_died(
    temporal: Client,
    temporal_address: str,
    database: Database,
    database_url: str,
    tmp_path: Path,
    when: str,
    paused: bool,
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    run = f"{when}-{'paused' if paused else 'running'}"
    async with cluster(temporal, database, tmp_path, gate) as stack, http(database) as api:
        handle = await stack.start(run, run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        if paused:
            await handle.execute_update("pause", {"reason": "lunch"})
        await handle.terminate("for the test")
        await database.pool.execute("update runs set created_at = now() - interval '1 minute'")
        assert await reconcile(database, temporal) == [run]
        await api.post(f"/runs/{run}/resume", {"actor": "ada"}, key="r1", wait=0)
        await dies(database, database_url, temporal_address, when)
        async with doing_commands(database, temporal):
            answer = await answer_of(api, "r1")
        gate.open.set()
        await temporal.get_workflow_handle(train_id(run)).result()
    assert (answer["refused"], answer["result"] and answer["result"]["accepted"]) == (None, True)
    assert answer["result"]["before"] == (True if paused else {"status": "interrupted", "epoch": 1})
    rows = [(row["action"], row["refused"]) for row in await audit(database, run) if row["actor"] == "ada"]
    assert rows == [("resume", None)] * (1 + paused)
    assert await database.pool.fetchval("select epoch from runs") == 2


async def test_a_resume_whose_run_has_ended_again_is_done_and_drives_it_no_third_time(
    temporal: Client, temporal_address: str, database: Database, database_url: str, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack, http(database) as api:
        handle = await stack.start("regretted", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        await handle.cancel()
        await eventually(run_is(database, "regretted", "cancelled"))
        await api.post("/runs/regretted/resume", {}, key="r2", wait=0)
        await dies(database, database_url, temporal_address, "answered")
        await eventually(run_is(database, "regretted", "running"))
        await temporal.get_workflow_handle("train/regretted").cancel()
        with pytest.raises(WorkflowFailureError):
            await temporal.get_workflow_handle("train/regretted").result()
        await eventually(run_is(database, "regretted", "cancelled"))
        async with doing_commands(database, temporal):
            answer = await answer_of(api, "r2")
    assert (answer["refused"], answer["result"]["after"]) == (None, {"status": "running", "epoch": 2})
    row = await database.pool.fetchrow("select status, epoch from runs")
    assert tuple(row) == ("cancelled", 2)


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("pause", {}),
    ("resume", {}),
    ("resume", {"actor": "late"}),  # refused: it is not paused
    ("set_hyperparameters", {"learning_rate": 0.5}),
    ("update_resources", {"resources": {"prompt": {"resource_type": "prompt_template", "template": "{x}"}}}),
    ("set_concurrency", {"concurrency": 5}),
    ("retry_rollout", {"rollout_id": "told-s0002-g00-i1"}),
    ("retry_failed", {}),
    ("cancel_rollout", {"rollout_id": "told-s0002-g00-i2"}),
    ("stop_after_step", {"step": 2}),
    ("fork", {"from_step": 1, "name": "forked"}),
    ("replay", {"name": "replayed"}),
]
LOSE = """
update commands set done_at = null, refused = null, claimed_until = now(),
    result = case when action in ('pause', 'stop_after_step') then result end
"""
"""What the rows are like where an orchestrator dies before it answers; what the store does by itself is answered."""


async def test_every_command_that_was_done_is_answered_as_before_where_its_answer_was_lost(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    """While its run is under way, and where that has ended meanwhile."""
    write_tasks(tmp_path)
    gate, failing = Gate(at("told-s0002-g00-i0", "told-s0002-g00-i2")), {"told-s0002-g00-i1", "told-s0002-g00-i3"}

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.rollout_id in failing and attempt.sequence_id == 1:
            return fails(attempt)
        return await gate(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack, http(database) as api:
        handle = await stack.start("told", run_file(steps=3, data="train.jsonl"))
        await gate.until(lambda: len(gate.held) == 2)
        for rollout_id in failing:
            await eventually(status_of(database, rollout_id, "failed"))
        async with doing_commands(database, temporal):
            for number, (action, value) in enumerate(COMMANDS):
                await api.post(f"/runs/told/{action}", value, key=f"c{number}", wait=30)
            first = await answers(api)
            await database.pool.execute(LOSE)
            again = await answers(api)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            for made in ("train/forked", "train/replayed"):
                await temporal.get_workflow_handle(made).result()
            changes = len(await audit(database, "told"))
            await database.pool.execute(LOSE)
            after_the_end = await answers(api)
    assert [answer["action"] for answer in first if answer["refused"]] == ["resume"]
    for number, answer in enumerate(first):
        assert (again[number]["result"], again[number]["refused"]) == (answer["result"], answer["refused"])
        assert (after_the_end[number]["result"], after_the_end[number]["refused"]) == (
            answer["result"],
            answer["refused"],
        )
    assert len(await audit(database, "told")) == changes
    assert dict(await database.pool.fetch("select run, epoch from runs")) == {"told": 1, "forked": 1, "replayed": 1}


async def answers(api: Http) -> list[dict[str, Any]]:
    return [await answer_of(api, f"c{number}") for number in range(len(COMMANDS))]
