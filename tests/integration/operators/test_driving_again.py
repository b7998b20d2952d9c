"""Runs that no workflow drives: resumed in mid-step, in a new epoch, from Postgres alone if need be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError

from relight.errors import ConfigError, ConflictError
from relight.operators.operator import Operator
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.types.commands import Resume
from relight.types.names import ORCHESTRATOR_QUEUE, train_id
from relight.worker.reconciler import reconcile
from tests.integration.operators.kit import Gate, at, audit, run_is, trained_twice
from tests.support.orchestration import Cluster, cluster, eventually, run_file, write_tasks
from tests.support.temporal import temporal_dev_server

FILE = run_file(data="train.jsonl")


@pytest.fixture
def other_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Temporal server that knows nothing."""
    with temporal_dev_server(tmp_path_factory.mktemp("other-temporal")) as address:
        yield address


def operator(client: Client, database: Database) -> Operator:
    return Operator(client, RunViews(database), ORCHESTRATOR_QUEUE)


async def until_one_is_left(gate: Gate, database: Database, run: str) -> None:
    """Step 2 is open, and one of its rollouts alone is under way."""
    await gate.until(lambda: bool(gate.held))

    async def others_done() -> bool:
        text = "select count(*) from rollouts where run = $1 and step = 2 and ended_at is null"
        return await database.pool.fetchval(text, run) == 1

    await eventually(others_done)


async def goes_on(stack: Cluster, gate: Gate, database: Database, run: str, before: dict[str, int]) -> None:
    """The run ends as if nothing had been: no finished rollout again, none trained twice, no step twice."""
    gate.open.set()
    await stack.client.get_workflow_handle(train_id(run)).result()
    assert {name: stack.runner.ran[name] for name in before} == before
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert await trained_twice(database, run) == 0
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = $1", run) == 24
    row = await database.pool.fetchrow("select status, epoch, error from runs where run = $1", run)
    assert tuple(row) == ("finished", 2, None)


def finished_by_now(stack: Cluster, left: str) -> dict[str, int]:
    return {name: count for name, count in stack.runner.ran.items() if not name.endswith(left)}


@pytest.mark.parametrize("how", ["terminated", "cancelled", "failed"])
async def test_a_run_that_no_workflow_drives_continues_in_mid_step_when_resumed(
    temporal: Client, database: Database, tmp_path: Path, how: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        if how == "failed":
            gate.open.set()
            broken = ApplicationError("no such key", type="ConfigError", non_retryable=True)
            stack.gpu.fail = lambda step: broken if step == 2 else None
        handle = await stack.start(how, FILE)
        if how == "failed":
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            stack.gpu.fail = lambda step: None
        else:
            await until_one_is_left(gate, database, how)
            await (handle.terminate("for the test") if how == "terminated" else handle.cancel())
        await eventually(run_is(database, how, "running" if how == "terminated" else how))
        before = finished_by_now(stack, "s0002-g01-i3")
        result = await operator(temporal, database).resume(how, Resume(actor="ada"))
        assert result.after == {"status": "running", "epoch": 2}
        await goes_on(stack, gate, database, how, before)
    resumed = [row for row in await audit(database, how) if row["action"] == "resume"]
    assert [
        (row["actor"], row["before"]["epoch"], row["after"]["epoch"], row["effective_step"]) for row in resumed
    ] == [("ada", 1, 2, 2)]


async def test_a_terminated_run_that_was_paused_is_driven_again_without_its_pause(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("asleep", FILE)
        await until_one_is_left(gate, database, "asleep")
        await handle.execute_update("pause", {"reason": "lunch"})
        await handle.terminate("for the test")
        await database.pool.execute("update runs set created_at = now() - interval '1 minute'")
        assert await reconcile(database, temporal) == ["asleep"]
        before = finished_by_now(stack, "s0002-g01-i3")
        await operator(temporal, database).resume("asleep", Resume(actor="ada"))
        await goes_on(stack, gate, database, "asleep", before)
    assert [(row["actor"], row["action"]) for row in await audit(database, "asleep")] == [
        ("operator", "pause"),
        ("relight", "interrupt"),
        ("ada", "resume"),
        ("ada", "resume"),
    ]


async def test_a_run_continues_from_postgres_alone_when_temporal_has_lost_everything(
    temporal: Client, other_address: str, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        await stack.start("bereft", FILE)
        await until_one_is_left(gate, database, "bereft")
        before = finished_by_now(stack, "s0002-g01-i3")
        done = dict(stack.gpu.updates)
    fresh = await Client.connect(other_address, data_converter=pydantic_data_converter)
    async with cluster(fresh, database, tmp_path, gate) as stack:
        stack.runner.ran.update(before)
        stack.gpu.updates.update(done)
        await operator(fresh, database).resume("bereft", Resume(actor="ada"))
        await goes_on(stack, gate, database, "bereft", before)
    await temporal.get_workflow_handle(train_id("bereft")).terminate("its server is history")
    with pytest.raises(ConfigError, match="run bereft is finished"):
        await operator(temporal, database).resume("bereft", Resume())


async def test_a_live_run_that_is_not_paused_refuses_to_be_resumed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("awake", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        with pytest.raises(ConflictError, match="the run is not paused"):
            await operator(temporal, database).resume("awake", Resume())
        gate.open.set()
        await handle.result()
