"""Runs that end before their time, names that are taken, and rollouts that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.errors import TrainerError
from relight.store.database import Database
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks


async def test_a_terminated_run_continues_in_mid_step_and_runs_no_finished_rollout_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    stuck, release = asyncio.Event(), asyncio.Event()

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.rollout_id.endswith("s0002-g01-i3"):
            stuck.set()
            await release.wait()
        return await always_right(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("broken", run_file())
        await stuck.wait()

        async def others_done() -> bool:
            open_ones = "select count(*) from rollouts where run = 'broken' and step = 2 and ended_at is null"
            return await database.pool.fetchval(open_ones) == 1

        await eventually(others_done)
        before = {name: count for name, count in stack.runner.ran.items() if not name.endswith("s0002-g01-i3")}
        await handle.terminate("for the test")
        again = await stack.start("broken", run_file())
        release.set()
        await again.result()
        assert {name: stack.runner.ran[name] for name in before} == before
    run = await database.pool.fetchrow("select status, epoch from runs where run = 'broken'")
    assert (run["status"], run["epoch"]) == ("finished", 2)
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    twice = "select rollout_id from step_rollouts where run = 'broken' group by rollout_id having count(*) > 1"
    assert await database.pool.fetch(twice) == []
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'broken'") == 24


async def test_a_finished_name_and_another_file_under_a_name_are_refused_with_the_keys_that_differ(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("taken", run_file(steps=1))).result()
        for file, words in (
            (run_file(steps=1), ["is finished", "choose another name"]),
            (run_file(steps=1, group_size=2), ["differing: group_size", "choose another name"]),
        ):
            with pytest.raises(WorkflowFailureError) as failure:
                await (await stack.start("taken", file)).result()
            message = str(failure.value.cause) + str(getattr(failure.value.cause, "cause", ""))
            assert all(word in message for word in words), message
    assert await database.pool.fetchval("select status from runs where run = 'taken'") == "finished"


async def test_an_agent_that_fails_is_tried_again_only_as_its_configuration_says(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        failing = {"s0001-g00-i0": "timeout", "s0001-g00-i1": "agent_error"}.get(attempt.rollout_id[-12:])
        if failing and attempt.sequence_id == 1:
            return FinishRequest(
                attempt_id=attempt.attempt_id,
                fence=attempt.fence,
                failure_class=FailureClass(failing),
                message="on purpose",
            )
        return await always_right(attempt)

    retries = {"max_attempts": 3, "retry_condition": ["timeout"], "backoff_seconds": 0.1}
    async with cluster(temporal, database, tmp_path, agent) as stack:
        await (await stack.start("tries", run_file(steps=1, rollout=retries))).result()
    rows = await database.pool.fetch(
        "select rollout_id, status, failure_class, attempts from rollouts where rollout_id like 'tries-s0001-g00%'"
    )
    found = {row["rollout_id"][-2:]: (row["status"], row["failure_class"], row["attempts"]) for row in rows}
    assert found["i0"] == ("succeeded", None, 2)
    assert found["i1"] == ("failed", "agent_error", 1)
    trained = "select count(*) from step_rollouts where run = 'tries'"
    assert await database.pool.fetchval(trained) == 7


async def test_a_group_short_of_platform_failures_is_filled_up_and_one_short_of_agent_failures_is_not(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        failing = {"s0001-g00-i0": "engine_error", "s0001-g01-i0": "agent_error"}.get(attempt.rollout_id[-12:])
        if failing:
            return FinishRequest(
                attempt_id=attempt.attempt_id,
                fence=attempt.fence,
                failure_class=FailureClass(failing),
                message="on purpose",
            )
        return await always_right(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        await (await stack.start("short", run_file(steps=1))).result()
    groups = await database.pool.fetch(
        "select group_number, count(*) as size, count(*) filter (where fill_up > 0) as filled from rollouts"
        " where run = 'short' and kind = 'train' group by group_number order by group_number"
    )
    assert [(row["size"], row["filled"]) for row in groups] == [(5, 1), (4, 0)]
    trained = await database.pool.fetch(
        "select group_number, count(*) as size from step_rollouts where run = 'short'"
        " group by group_number order by group_number"
    )
    assert [row["size"] for row in trained] == [4, 3]


async def test_an_update_that_fails_three_times_in_the_same_way_pauses_the_run(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    broken = True
    async with cluster(temporal, database, tmp_path) as stack:
        stack.gpu.fail = lambda step: TrainerError("loss is not finite") if broken and step == 2 else None
        handle = await stack.start("nan", run_file())

        async def paused() -> bool:
            return bool(await database.pool.fetchval("select paused from runs where run = 'nan'"))

        await eventually(paused)
        reason = await database.pool.fetchval("select pause_reason from runs where run = 'nan'")
        broken = False
        await handle.execute_update("resume", {})
        await handle.result()
    assert reason == "update of step 2 failed 3 times: loss is not finite"
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}


async def test_a_cancelled_run_closes_its_rollouts_and_shows_it(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    started = asyncio.Event()

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        started.set()
        await asyncio.sleep(3600)
        raise AssertionError("it was cancelled")

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("stopped", run_file(data="train.jsonl"))
        await started.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()

        async def closed() -> bool:
            open_ones = "select count(*) from rollouts where run = 'stopped' and ended_at is null"
            return await database.pool.fetchval(open_ones) == 0

        await eventually(closed)
    assert await database.pool.fetchval("select status from runs where run = 'stopped'") == "cancelled"
