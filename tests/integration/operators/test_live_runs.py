"""Updates and signals of live runs: cancel, retry, concurrency; each with its audit row."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from relight.store.database import Database
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.integration.operators.kit import Gate, at, audit, fails, run_is, status_of
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks


async def test_a_run_that_is_cancelled_by_an_update_ends_and_names_the_actor(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(lambda attempt: attempt.mode == "train")
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("ended", run_file(data="train.jsonl"))
        await gate.until(lambda: len(gate.held) == 8)
        answer = await handle.execute_update("cancel", {"actor": "ada", "reason": "wrong data"})
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await eventually(run_is(database, "ended", "cancelled"))
    assert answer["effective_step"] == 1
    statuses = await database.pool.fetch("select distinct status, failure_class from rollouts where run = 'ended'")
    assert [tuple(row) for row in statuses] == [("cancelled", "cancelled")]
    [row] = await audit(database, "ended")
    assert (row["actor"], row["action"], row["before"], row["refused"]) == ("ada", "cancel", "running", None)
    assert row["after"] == {"status": "cancelled", "epoch": 1, "reason": "wrong data"}


async def test_a_cancel_that_comes_from_temporal_itself_has_an_audit_row_too(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(lambda attempt: attempt.mode == "train")
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("unsigned", run_file(data="train.jsonl"))
        await gate.until(lambda: len(gate.held) == 8)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert [(row["actor"], row["action"]) for row in await audit(database, "unsigned")] == [("temporal", "cancel")]


@pytest.mark.parametrize("way", ["update", "signal", "signal to the rollout"])
async def test_a_cancelled_rollout_stops_at_once_and_trains_nothing(
    temporal: Client, database: Database, tmp_path: Path, way: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    target = "thinned-s0001-g00-i0"
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("thinned", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: target in gate.held)
        command = {"rollout_id": target, "actor": "ada", "reason": "it loops"}
        if way == "update":
            assert (await handle.execute_update("cancel_rollout", command))["after"] == "cancelled"
        elif way == "signal":
            await handle.signal("cancel_rollout", command)
        else:
            await temporal.get_workflow_handle(f"rollout/{target}").signal("cancel", command)
        await handle.result()
    row = await database.pool.fetchrow("select status, failure, attempts from rollouts where rollout_id = $1", target)
    assert tuple(row) == ("cancelled", "it loops", 1)
    assert await database.pool.fetchval("select count(*) from attempts where ended_at is null") == 0
    trained = await database.pool.fetch("select rollout_id from step_rollouts where run = 'thinned'")
    assert len(trained) == 7
    [row] = await audit(database, "thinned")
    assert (row["actor"], row["action"], row["after"], row["rollout_id"]) == (
        "ada",
        "cancel_rollout",
        "cancelled",
        target,
    )


async def test_a_retry_begins_at_once_while_others_of_its_batch_are_in_progress(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i1"))
    failed, slow = "again-s0001-g00-i0", "again-s0001-g00-i1"

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.rollout_id == failed and attempt.sequence_id == 1:
            return fails(attempt)
        return await gate(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("again", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: slow in gate.held)
        await eventually(status_of(database, failed, "failed"))
        await handle.execute_update("retry_rollout", {"rollout_id": failed, "actor": "ada"})
        await eventually(status_of(database, failed, "succeeded"))
        assert not gate.open.is_set()
        gate.open.set()
        await handle.result()
    assert (stack.runner.ran[failed], stack.runner.ran[slow]) == (2, 1)
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'again'") == 8


async def test_all_failed_rollouts_of_the_open_step_are_tried_again_and_no_other(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g01-i3"))
    broken = {"all-s0001-g00-i0": "timeout", "all-s0001-g00-i2": "agent_error", "all-s0001-g01-i0": "timeout"}

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.sequence_id == 1 and (kind := broken.get(attempt.rollout_id)):
            return fails(attempt, kind)
        return await gate(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("all", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        for rollout_id in broken:
            await eventually(status_of(database, rollout_id, "failed"))
        one = await handle.execute_update("retry_failed", {"failure_class": "agent_error"})
        await eventually(status_of(database, "all-s0001-g00-i2", "succeeded"))
        rest = await handle.execute_update("retry_failed", {})
        with pytest.raises(WorkflowUpdateFailedError) as nothing_left:
            await handle.execute_update("retry_failed", {"failure_class": "agent_error"})
        gate.open.set()
        await handle.result()
    assert (one["before"], one["after"]) == ({"agent_error": 1}, {"requeuing": 1})
    assert (rest["before"], rest["after"]) == ({"timeout": 2}, {"requeuing": 2})
    assert "no rollout of an open batch has failed as agent_error" in str(nothing_left.value.cause)
    assert {name: count for name, count in stack.runner.ran.items() if count > 1} == dict.fromkeys(broken, 2)
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'all'") == 8


async def test_concurrency_takes_effect_on_the_step_in_progress(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0", "s0001-g00-i1", "s0001-g00-i2", "s0001-g00-i3", "s0001-g01-i0", "s0001-g01-i1"))
    file = run_file(steps=2, data="train.jsonl", concurrency=1)
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("wider", file)
        await gate.until(lambda: len(gate.held) == 1)
        await asyncio.sleep(0.5)  # in which no other begins
        assert gate.most_under_way == 1
        answer = await handle.execute_update("set_concurrency", {"concurrency": 3, "actor": "ada"})
        await gate.until(lambda: len(gate.held) == 3)
        await asyncio.sleep(0.5)  # in which no other begins
        assert gate.most_under_way == 3
        await handle.execute_update("set_concurrency", {"concurrency": 2})
        gate.open.set()
        await handle.result()
    assert (answer["before"], answer["after"], answer["effective_step"]) == (1, 3, 1)
    assert gate.most_under_way == 3
    assert await database.pool.fetchval("select concurrency from runs where run = 'wider'") == 2


@pytest.mark.parametrize(
    ("action", "value", "reason"),
    [
        ("cancel_rollout", {"rollout_id": "strict-s0009-g00-i0"}, "this run has no rollout 'strict-s0009-g00-i0'"),
        ("cancel_rollout", {"rollout_id": "strict-s0001-g00-i1"}, "can't be cancelled: it is succeeded"),
        ("cancel_rollout", {}, "rollout_id: missing"),
        ("retry_rollout", {"rollout_id": "strict-s0001-g00-i1"}, "can't be tried again: it is succeeded"),
        ("retry_failed", {}, "no rollout of an open batch has failed"),
        ("retry_failed", {"failure_class": "hiccup"}, "failure_class: "),
        ("set_concurrency", {"concurrency": 0}, "concurrency: "),
        ("set_hyperparameters", {"mini_batches": 3}, "`algorithm.mini_batches`: 3 is more than `batch_size`, 2"),
        ("cancel", {"force": True}, "force: unknown key"),
    ],
)
async def test_a_command_that_is_invalid_is_refused_with_a_reason(
    temporal: Client, database: Database, tmp_path: Path, action: str, value: dict[str, object], reason: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("strict", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        await eventually(status_of(database, "strict-s0001-g00-i1", "succeeded"))
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await handle.execute_update(action, value)
        gate.open.set()
        await handle.result()
    assert reason in str(refusal.value.cause)
    assert await database.pool.fetchval("select status from runs where run = 'strict'") == "finished"


async def test_a_cancelled_rollout_can_be_tried_again_while_its_batch_is_open(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0", "s0001-g00-i1"))
    target = "back-s0001-g00-i0"

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        return await (gate(attempt) if attempt.sequence_id == 1 else always_right(attempt))

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("back", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: len(gate.held) == 2)
        await handle.execute_update("cancel_rollout", {"rollout_id": target})
        await handle.execute_update("retry_rollout", {"rollout_id": target})
        gate.open.set()
        await handle.result()
    row = await database.pool.fetchrow("select status, attempts from rollouts where rollout_id = $1", target)
    assert tuple(row) == ("succeeded", 2)
    assert [entry["action"] for entry in await audit(database, "back")] == ["cancel_rollout", "retry_rollout"]
