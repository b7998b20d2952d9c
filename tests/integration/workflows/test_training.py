"""TrainingWorkflow on a real Temporal server and a real Postgres."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.store.database import Database
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks


async def test_a_run_trains_every_step_once_and_evaluates_the_first_and_last_version(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("plain", run_file())
        result = await handle.result()
    assert (result["status"], result["phase"], result["step"], result["total_steps"]) == ("finished", "finished", 3, 3)
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert set(stack.runner.ran.values()) == {1}
    assert len(stack.runner.ran) == 3 * 8 + 2 * 10
    steps = await database.pool.fetch("select step, status from steps where run = 'plain' order by step")
    assert [(row["step"], row["status"]) for row in steps] == [(n, "recorded") for n in range(4)]
    run = await database.pool.fetchrow("select status, epoch from runs where run = 'plain'")
    assert (run["status"], run["epoch"]) == ("finished", 1)


async def test_a_task_is_any_json_value_and_reaches_the_agent_as_it_is(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    tasks: list[Any] = ["a text", 7, 1.5, True, ["a", {"b": [1]}], {"question": "a"}]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    seen: list[Any] = []

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        seen.append(attempt.input)
        return await always_right(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        file = run_file(steps=1, batch_size=len(tasks), group_size=2, data="train.jsonl")
        await (await stack.start("any", file)).result()
    assert sorted(map(repr, seen)) == sorted(map(repr, tasks * 2))


@pytest.mark.parametrize("cached", [0, 2000], ids=["without a workflow cache", "with one"])
async def test_a_run_continues_across_continue_as_new(
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


async def test_a_rollout_is_found_by_its_task_and_says_which_sample_of_which_group_it_is(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("found", run_file(steps=1))).result()
    rollout = "found-s0001-g01-i2"
    position = await database.pool.fetchval("select position from rollouts where rollout_id = $1", rollout)

    async def of_the_task() -> set[str] | None:
        query = f"RelightRun = 'found' and RelightTask = 'train/{position}'"
        ids = {run.id async for run in temporal.list_workflows(query)}
        return ids if len(ids) == 4 else None

    assert await eventually(of_the_task) == {f"rollout/found-s0001-g01-i{index}" for index in range(4)}
    described = await temporal.get_workflow_handle(f"rollout/{rollout}").describe()
    assert await described.static_summary() == "group 1, sample 2"
