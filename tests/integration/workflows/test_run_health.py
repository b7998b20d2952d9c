"""Runs that failing pause themselves or warn, on a real Temporal server and a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.temporal import search_attributes
from relight.types import names
from relight.types.rollout import FailureClass
from relight.types.views import RolloutFilter
from relight.types.wire import FinishRequest, OpenedAttempt
from relight.worker.reconciler import report_stalls
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks

AUDIT = "select actor, action, after, effective_step from audit where run = $1 order by id"


class Failing:
    """Fails as told, until told otherwise."""

    def __init__(self, kind: str, which: Callable[[OpenedAttempt], bool] = lambda attempt: True) -> None:
        self.kind: str | None = kind
        self.which = which

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        if self.kind is None or not self.which(attempt):
            return await always_right(attempt)
        return FinishRequest(
            attempt_id=attempt.attempt_id,
            fence=attempt.fence,
            failure_class=FailureClass(self.kind),
            message="ModuleNotFoundError: x",
        )


def paused(database: Database, run: str, step: int | None = None) -> Callable[[], Awaitable[Any]]:
    """Whether it is, and why."""

    async def check() -> str | None:
        row = await database.pool.fetchrow("select paused, pause_reason from runs where run = $1", run)
        reason = row["pause_reason"] if row and row["paused"] else None
        return reason if reason and (step is None or reason.startswith(f"step {step}:")) else None

    return check


@pytest.mark.parametrize("cached", [0, 2000], ids=["without a workflow cache", "with one"])
async def test_a_step_without_a_reward_pauses_and_can_be_retried_before_it_trains(
    temporal: Client, database: Database, tmp_path: Path, cached: int
) -> None:
    write_tasks(tmp_path)
    agent = Failing("agent_error")
    async with cluster(temporal, database, tmp_path, agent, cached_workflows=cached) as stack:
        handle = await stack.start("failing", run_file(steps=2, data="train.jsonl"))
        reason = await eventually(paused(database, "failing"))
        assert reason.startswith("step 1: not one real reward: 8 of 8 rollouts failed (agent_error 8)")
        assert "for example failing-s0001-g00-i0: ModuleNotFoundError: x" in reason
        assert "relight retry failing --failed" in reason
        assert dict(stack.gpu.updates) == {}

        async def shown() -> bool:
            return (await handle.query(names.PROGRESS))["paused"]

        await eventually(shown)
        agent.kind = None
        await handle.execute_update("retry_failed", {})
        await handle.execute_update("resume", {})
        await handle.result()
    assert dict(stack.gpu.updates) == {1: 1, 2: 1}
    trained = await database.pool.fetchval("select count(*) from step_rollouts where run = 'failing' and step = 1")
    assert trained == 8
    audit = [tuple(row) for row in await database.pool.fetch(AUDIT, "failing")]
    assert [row[:2] for row in audit] == [("relight", "pause"), ("operator", "retry_failed"), ("operator", "resume")]
    assert audit[0][2:] == ({"paused": True, "reason": reason}, 1)
    assert (await RunViews(database).audit("failing"))[0].actor == "relight"


async def test_a_resumed_step_trains_as_it_is_and_the_next_unhealthy_one_pauses_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    agent = Failing("agent_error")
    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("again", run_file(steps=3, data="train.jsonl"))
        for step in (1, 2):
            await eventually(paused(database, "again", step))
            await handle.execute_update("resume", {})
        await eventually(paused(database, "again", 3))
        agent.kind = None
        await handle.execute_update("retry_failed", {})
        await handle.execute_update("resume", {})
        result = await handle.result()
    unchanged = await database.pool.fetch("select unchanged from steps where run = 'again' and step > 0 order by step")
    assert [row["unchanged"] for row in unchanged] == [True, True, False]
    assert result["counters"]["agent_error"] == 16
    actions = [tuple(row)[:2] for row in await database.pool.fetch(AUDIT, "again")]
    assert actions.count(("relight", "pause")) == 3


async def test_rollouts_that_the_platform_failed_are_sampled_again_once_a_paused_run_continues(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    agent = Failing("engine_error", lambda attempt: attempt.step == 1 and int(attempt.rollout_id[-1]) < 3)
    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("lost", run_file(steps=1, data="train.jsonl"))
        reason = await eventually(paused(database, "lost"))
        assert "6 of 8 rollouts failed (engine_error 6), more than `failures.pause_above.platform` (0.5)" in reason
        assert await database.pool.fetchval("select max(fill_up) from rollouts where run = 'lost'") == 0
        agent.kind = None
        await handle.execute_update("resume", {})
        result = await handle.result()
    trained = await database.pool.fetchval("select count(*) from step_rollouts where run = 'lost'")
    assert trained == 8
    assert result["counters"] == {"rollouts": 14, "retried": 0, "engine_error": 6}


async def test_an_evaluation_without_a_reward_pauses_and_continues_when_resumed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path, count=4)
    agent = Failing("no_reward", lambda attempt: attempt.mode == "val")
    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("blind", run_file(steps=1, evaluation={"at_end": False}))
        reason = await eventually(paused(database, "blind"))
        assert reason.startswith("the evaluation of version 0: not one real reward: 4 of 4")
        assert dict(stack.gpu.updates) == {}
        await handle.execute_update("resume", {})
        await handle.result()
    assert dict(stack.gpu.updates) == {1: 1}


async def test_steps_whose_groups_have_equal_rewards_are_warned_of_until_one_differs(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    seen: list[dict[str, str]] = []

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.step == 4 and not seen:
            seen.append((await RunViews(database).run("flat")).warnings)
        reward = 0.5 if (attempt.step or 0) < 4 else float(int(attempt.rollout_id[-1]) % 2)
        return FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=reward)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("flat", run_file(steps=5, data="train.jsonl"))
        result = await handle.result()
    assert list(seen[0]) == ["equal_rewards"]
    assert seen[0]["equal_rewards"].startswith("in every group of steps 1 to 3 all rewards were equal")
    assert (await RunViews(database).run("flat")).warnings == {}
    assert result["warnings"] == {}


async def test_a_run_without_progress_is_warned_of_and_paused_if_its_file_asks_for_it(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    go_on = {"still": asyncio.Event(), "stopped": asyncio.Event()}

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        await go_on[attempt.run or ""].wait()
        return await always_right(attempt)

    limit = {"stalled_after_seconds": 0.5}
    async with cluster(temporal, database, tmp_path, agent) as stack:
        still = await stack.start("still", run_file(steps=1, data="train.jsonl", failures=limit))
        stopped = await stack.start(
            "stopped", run_file(steps=1, data="train.jsonl", failures={**limit, "pause_when_stalled": True})
        )

        async def under_way() -> bool:
            return await database.pool.fetchval("select count(*) from attempts where ended_at is null") == 16

        async def warned() -> bool:
            await report_stalls(database, temporal)
            text = "select count(*), bool_or(paused) from runs where warnings ? 'stalled'"
            number, is_paused = await database.pool.fetchrow(text)
            return number == len(go_on) and is_paused

        await eventually(under_way)
        await eventually(warned)
        view = await RunViews(database).run("stopped")
        assert "nothing has ended since" in (view.pause_reason or "")
        assert "8 attempts are under way" in view.warnings["stalled"]
        assert not (await RunViews(database).run("still")).paused

        async def still_warned() -> bool:
            return "stalled" in (await still.query(names.PROGRESS))["warnings"]

        await eventually(still_warned)
        for event in go_on.values():
            event.set()
        await still.result()
        await stopped.execute_update("resume", {})
        await stopped.result()
    actions = [tuple(row)[:2] for row in await database.pool.fetch(AUDIT, "stopped")]
    assert actions == [("relight", "pause"), ("operator", "resume")]


async def is_found_by_its_task(temporal: Client, database: Database, rollout_id: str) -> None:
    position = await database.pool.fetchval("select position from rollouts where rollout_id = $1", rollout_id)
    task = f"{'eval' if rollout_id.endswith('eval') else 'train'}/{position}"
    described = await temporal.get_workflow_handle(names.rollout_workflow_id(rollout_id)).describe()
    assert described.typed_search_attributes[search_attributes.TASK] == task
    assert await described.static_summary() == f"preflight, task {task}"


async def test_a_preflight_that_finds_an_agent_without_a_model_call_ends_the_run_before_anything_trains(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        return FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=1.0)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("silent", run_file(preflight=True))
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    view = await RunViews(database).run("silent")
    assert view.status == "failed"
    assert "without calling the model" in (view.error or "")
    assert "silent-preflight-train" in (view.error or "")
    found = await RunViews(database).rollouts("silent", RolloutFilter(kind="preflight"))
    ids = ["silent-preflight-eval", *(f"silent-preflight-train{tail}" for tail in ("", "-2", "-3"))]
    assert [rollout.rollout_id for rollout in found.items] == ids
    for rollout in found.items:
        await is_found_by_its_task(temporal, database, rollout.rollout_id)
    assert await database.pool.fetchval("select count(*) from steps where run = 'silent' and step > 0") == 0
    assert dict(stack.gpu.updates) == {}
