"""TrainingWorkflow on a real Temporal server and a real Postgres."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.store.database import Database
from tests.support.orchestration import cluster, run_file, write_tasks


async def test_a_run_trains_every_step_once_and_evaluates_both_ends(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("plain", run_file())
        result = await handle.result()
    assert result["step"] == 4
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert set(stack.runner.ran.values()) == {1}
    assert len(stack.runner.ran) == 3 * 8 + 2 * 10
    steps = await database.pool.fetch("select step, status from steps where run = 'plain' order by step")
    assert [(row["step"], row["status"]) for row in steps] == [(n, "recorded") for n in range(4)]
    run = await database.pool.fetchrow("select status, epoch from runs where run = 'plain'")
    assert (run["status"], run["epoch"]) == ("finished", 1)


@pytest.mark.parametrize("cached", [0, 2000], ids=["without a workflow cache", "with one"])
async def test_a_run_goes_on_across_continue_as_new(
    temporal: Client, database: Database, tmp_path: Path, cached: int
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path, cached_workflows=cached) as stack:
        handle = await stack.start("long", {**run_file(), "history_limit": 20})
        await handle.result()
        runs = [run async for run in temporal.list_workflows("WorkflowId = 'train/long'")]
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert set(stack.runner.ran.values()) == {1}
    assert runs is not None


async def test_input_that_does_not_validate_fails_the_run_at_once_with_a_message(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("bad", run_file(learning_rat=1e-3))
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
    assert "learning_rat: unknown key" in str(failure.value.cause)
