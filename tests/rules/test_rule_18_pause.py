"""Rule 18: a pause is a fact in the run's row. Nothing begins; what is under way ends and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from relight.errors import PausedError
from relight.store.database import Database
from relight.store.training import plans
from relight.types import names
from relight.types.payloads import StepInput
from tests.integration.operators.kit import Gate, at
from tests.rules.kit import begin
from tests.support.orchestration import cluster, eventually, run_file, write_tasks


async def checks_while_paused(handle: WorkflowHandle[Any, Any], number: int) -> bool:
    """Whether a run that has nothing to do but to wait has asked so many times if it is still paused."""
    if (await handle.query(names.PROGRESS))["phase"] != "paused":
        return False
    events = [event async for event in handle.fetch_history_events()]
    kinds = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    return kinds[-12:].count(names.CHECK_RUNNERS) >= number


async def test_no_update_begins_while_a_run_is_paused_and_the_batch_in_progress_ends_and_counts(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("still", run_file(steps=1) | {"check_seconds": 0.2})
        await gate.until(lambda: bool(gate.held))

        async def others_ended() -> bool:
            text = "select count(*) from rollouts where run = 'still' and kind = 'train' and status = 'succeeded'"
            return await database.pool.fetchval(text) == 7

        await eventually(others_ended)
        await handle.execute_update("pause", {})
        gate.open.set()

        async def sampled() -> bool:
            text = "select status from steps where run = 'still' and step = 1"
            return await database.pool.fetchval(text) == "sampled"

        await eventually(sampled)
        await eventually(lambda: checks_while_paused(handle, 2))
        assert dict(stack.gpu.updates) == {}
        await handle.execute_update("resume", {})
        await handle.result()
    assert dict(stack.gpu.updates) == {1: 1}
    assert set(stack.runner.ran.values()) == {1}
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'still'") == 8


async def test_no_evaluation_begins_while_a_run_is_paused_and_one_that_is_planned_continues(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "still")
    step_input = StepInput(run=run.name, epoch=1, step=0)
    await run.change("pause", {})
    with pytest.raises(PausedError):
        await plans.plan_evaluation(database, step_input)
    await run.change("resume", {})
    planned = await plans.plan_evaluation(database, step_input)
    await run.change("pause", {})
    assert await plans.plan_evaluation(database, step_input) == planned


async def test_an_update_that_has_begun_continues_while_its_run_is_paused(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "begun")
    await run.plan(1)
    step_input = StepInput(run=run.name, epoch=1, step=1)
    await run.change("pause", {})
    with pytest.raises(PausedError):
        await plans.begin_update(database, step_input)
    await database.pool.execute("update steps set status = 'ledgered' where run = 'begun' and step = 1")
    await plans.begin_update(database, step_input)
