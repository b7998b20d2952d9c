"""What operators say to live runs: updates, signals, and their audit rows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import SearchAttributeKey

from relight.store.database import Database
from relight.types import names
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks


class Gate:
    """An agent that waits where the test wants it to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self.step = 1

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        if attempt.step == self.step and attempt.mode == "train":
            self.reached.set()
            await self.open.wait()
        return await always_right(attempt)


async def audit(database: Database, run: str) -> list[dict[str, Any]]:
    rows = await database.pool.fetch("select * from audit where run = $1 order by id", run)
    return [dict(row) for row in rows]


async def test_a_change_of_hyper_parameters_takes_effect_at_the_first_unplanned_step(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("tuned", run_file())
        await gate.reached.wait()
        change = {"learning_rate": 0.5, "group_size": 2, "actor": "ada"}
        answer = await handle.execute_update("set_hyperparameters", change)
        gate.open.set()
        await handle.result()
    assert answer["effective_step"] == 2
    plans = await database.pool.fetch("select step, plan from steps where run = 'tuned' and step > 0 order by step")
    rates = [row["plan"]["algorithm"]["learning_rate"] for row in plans]
    assert rates == [1e-6, 0.5, 0.5]
    assert [row["plan"]["group_size"] for row in plans] == [4, 2, 2]
    [row] = await audit(database, "tuned")
    assert (row["actor"], row["action"], row["effective_step"], row["refused"]) == (
        "ada",
        "set_hyperparameters",
        2,
        None,
    )
    assert row["after"] == {"learning_rate": 0.5, "group_size": 2}


async def test_a_paused_run_finishes_what_is_in_progress_and_begins_nothing_until_resumed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("halted", run_file())
        await gate.reached.wait()
        await handle.execute_update("pause", {"reason": "lunch"})
        shown = (await handle.describe()).typed_search_attributes
        assert shown[SearchAttributeKey.for_keyword(names.SEARCH_WAITING)] == "paused"
        under_way = set(stack.runner.ran)
        gate.open.set()

        async def drained() -> bool:
            left = await database.pool.fetchval("select count(*) from attempts where ended_at is null")
            return left == 0

        await eventually(drained)
        await asyncio.sleep(0.5)  # in which no other begins
        assert set(stack.runner.ran) == under_way
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("pause", {})
        await handle.execute_update("resume", {})
        shown = (await handle.describe()).typed_search_attributes
        assert SearchAttributeKey.for_keyword(names.SEARCH_WAITING) not in shown
        await handle.result()
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert set(stack.runner.ran.values()) == {1}
    assert [(row["action"], row["refused"]) for row in await audit(database, "halted")] == [
        ("pause", None),
        ("pause", "the run is paused already"),
        ("resume", None),
    ]


async def test_stop_after_step_finishes_the_run_there(temporal: Client, database: Database, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("short", run_file())
        await gate.reached.wait()
        await handle.signal("stop_after_step", {})
        await eventually(lambda: audit(database, "short"))
        gate.open.set()
        await handle.result()
    assert dict(stack.gpu.updates) == {1: 1}
    assert await database.pool.fetchval("select status from runs where run = 'short'") == "finished"


async def test_an_invalid_signal_changes_nothing_and_is_recorded_as_refused(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("steady", run_file(steps=1))
        await gate.reached.wait()
        for nonsense in ({"learning_rate": "fast"}, [1, 2], "x", {"learning_rat": 1}):
            await handle.signal("set_hyperparameters", nonsense)

        async def all_recorded() -> bool:
            return len(await audit(database, "steady")) == 4

        await eventually(all_recorded)
        progress = await handle.query("progress")
        gate.open.set()
        await handle.result()
    assert progress["refused"] == 4
    assert all(row["refused"] for row in await audit(database, "steady"))
    assert await database.pool.fetchval("select hyperparameters from runs where run = 'steady'") == {}


async def test_an_invalid_update_is_refused_with_the_invalid_key(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("strict", run_file(steps=1))
        await gate.reached.wait()
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await handle.execute_update("set_hyperparameters", {"learning_rat": 1})
        gate.open.set()
        await handle.result()
    assert "learning_rat: unknown key" in str(refusal.value.cause)


async def test_new_resources_are_stored_and_pinned_by_later_steps(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    template = {"resource_type": "prompt_template", "template": "Think. {question}"}
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("prompted", run_file())
        await gate.reached.wait()
        answer = await handle.execute_update("update_resources", {"resources": {"prompt": template}})
        gate.open.set()
        await handle.result()
    pinned = await database.pool.fetch(
        "select distinct step, resources_id from rollouts where run = 'prompted' and kind = 'train' order by step"
    )
    assert [row["resources_id"] for row in pinned] == ["rs-prompted", answer["after"], answer["after"]]


async def test_a_failed_rollout_of_an_open_batch_is_tried_again_when_asked(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate()
    tries: dict[str, int] = {}

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        tries[attempt.rollout_id] = tries.get(attempt.rollout_id, 0) + 1
        if attempt.rollout_id == "again-s0001-g00-i0" and tries[attempt.rollout_id] == 1:
            return FinishRequest(
                attempt_id=attempt.attempt_id,
                fence=attempt.fence,
                failure_class=FailureClass.AGENT_ERROR,
                message="boom",
            )
        if attempt.rollout_id == "again-s0001-g00-i1":
            gate.reached.set()
            await gate.open.wait()
        return await always_right(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("again", run_file(steps=1))
        await gate.reached.wait()

        async def failed() -> bool:
            status = "select status from rollouts where rollout_id = 'again-s0001-g00-i0'"
            return await database.pool.fetchval(status) == "failed"

        await eventually(failed)
        await handle.execute_update("retry_rollout", {"rollout_id": "again-s0001-g00-i0"})
        gate.open.set()
        await handle.result()
    row = await database.pool.fetchrow("select status, attempts from rollouts where rollout_id = 'again-s0001-g00-i0'")
    assert (row["status"], row["attempts"]) == ("succeeded", 2)
    assert tries["again-s0001-g00-i2"] == 1
