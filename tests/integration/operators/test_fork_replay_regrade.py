"""Forks, replays and regrades: runs that come from runs, and rewards that come afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.errors import ConfigError
from relight.operators.operator import Operator
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.store.database import Database
from relight.store.maintenance.check import check_store
from relight.store.runs.views import RunViews
from relight.types.commands import Fork, Regrade, Replay
from relight.types.names import ORCHESTRATOR_QUEUE, train_id
from relight.types.wire import AgentError
from tests.integration.operators.kit import audit
from tests.support.orchestration import cluster, run_file, served_grader, write_tasks

FILE = run_file(data="train.jsonl", steps=4)


def operator(client: Client, database: Database) -> Operator:
    return Operator(client, RunViews(database), ORCHESTRATOR_QUEUE)


async def finished(client: Client, run: str) -> Any:
    return await client.get_workflow_handle(train_id(run)).result()


async def positions(database: Database, run: str) -> dict[int, list[int]]:
    """The tasks of each step."""
    rows = await database.pool.fetch("select step, plan from steps where run = $1 and step > 0 order by step", run)
    return {row["step"]: row["plan"]["positions"] for row in rows}


async def test_a_fork_starts_from_its_parents_checkpoint_with_the_next_step_and_the_next_tasks(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("parent", FILE)).result()
        before = await database.pool.fetch("select * from steps where run = 'parent' order by step")
        changes = {"algorithm.learning_rate": 0.5}
        result = await operator(temporal, database).start_derived("parent", Fork(from_step=2, set=changes, actor="ada"))
        assert result.after == {"run": "parent-fork-1"}
        await finished(temporal, "parent-fork-1")
    child = await database.pool.fetchrow("select * from runs where run = 'parent-fork-1'")
    assert (child["status"], child["parent_run"], child["parent_step"], child["total_steps"]) == (
        "finished",
        "parent",
        2,
        4,
    )
    versions = await database.pool.fetch(
        "select run, version, checkpoint_path, forks from policy_versions where run like 'parent%'"
    )
    known = {(row["run"], row["version"]): (row["checkpoint_path"], row["forks"]) for row in versions}
    assert known["parent-fork-1", 2][0] == known["parent", 2][0]
    assert known["parent", 2][1] == 1
    assert {version for run, version in known if run == "parent-fork-1"} == {0, 2, 3, 4}
    parents = await positions(database, "parent")
    assert await positions(database, "parent-fork-1") == {3: parents[3], 4: parents[4]}
    steps = await database.pool.fetch("select plan from steps where run = 'parent-fork-1'")
    assert {row["plan"]["algorithm"]["learning_rate"] for row in steps} == {0.5}
    assert await database.pool.fetch("select * from steps where run = 'parent' order by step") == before
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 2, 4: 2}
    assert await check_store(database) == []
    [row] = await audit(database, "parent-fork-1")
    assert (row["actor"], row["action"], row["before"], row["effective_step"]) == (
        "ada",
        "fork",
        {"run": "parent", "step": 2},
        3,
    )


async def test_a_fork_takes_what_was_changed_while_its_parent_ran(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("changed", FILE)
        await handle.execute_update("set_hyperparameters", {"group_size": 2, "temperature": 0.7})
        await handle.result()
        await operator(temporal, database).start_derived("changed", Fork(from_step=3, name="heir", set={"steps": 5}))
        await finished(temporal, "heir")
    plans = await database.pool.fetch("select plan from steps where run = 'heir'")
    assert {(row["plan"]["group_size"], row["plan"]["sampling"]["temperature"]) for row in plans} == {(2, 0.7)}
    assert len(plans) == 2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Fork(from_step=9), "no checkpoint of step 9; there is: 1, 2, 3, 4"),
        (Fork(from_step=4), "steps: 4 steps end at or before step 4"),
        (Fork(from_step=1, set={"learning_rat": 1}), "learning_rat: unknown key"),
        (Fork(from_step=1, set={"model": "other"}), "another model needs --from-step 0"),
        (Replay(set={"group_size": 8}), "group_size: a replay samples nothing"),
        (Replay(set={"sampling.temperature": 0.5}), "sampling.temperature: a replay samples nothing"),
    ],
)
async def test_an_invalid_fork_or_replay_is_refused_before_anything_starts(
    temporal: Client, database: Database, tmp_path: Path, command: Fork | Replay, reason: str
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("origin", FILE)).result()
        with pytest.raises(ConfigError, match=reason):
            await operator(temporal, database).start_derived("origin", command)
    assert await database.pool.fetchval("select count(*) from runs") == 1


async def test_a_replay_trains_on_its_parents_rollouts_and_samples_nothing(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("played", FILE)).result()
        ran = dict(stack.runner.ran)
        before = await database.pool.fetch("select * from step_rollouts where run = 'played' order by rollout_id")
        changes = {"algorithm.loss_mode": "gspo", "algorithm.learning_rate": 0.25}
        await operator(temporal, database).start_derived("played", Replay(set=changes, name="re-played", actor="ada"))
    async with cluster(temporal, database, tmp_path, prefix="unknown-here"):  # no runner serves the agent
        await finished(temporal, "re-played")
    assert dict(stack.runner.ran) == ran
    assert await database.pool.fetchval("select count(*) from rollouts where run = 're-played'") == 0
    used = await database.pool.fetch("select * from step_rollouts where run = 're-played' order by rollout_id")
    columns = ("step", "rollout_id", "attempt_id", "reward", "grader")
    assert [[row[name] for name in columns] for row in used] == [[row[name] for name in columns] for row in before]
    steps = await database.pool.fetch("select status, plan from steps where run = 're-played' and step > 0")
    assert {(row["status"], row["plan"]["algorithm"]["loss_mode"]) for row in steps} == {("recorded", "gspo")}
    assert len(steps) == 4
    run = await database.pool.fetchrow("select status, parent_run, replays from runs where run = 're-played'")
    assert tuple(run) == ("finished", "played", True)
    assert await positions(database, "re-played") == await positions(database, "played")
    assert await check_store(database) == []


async def steady(call: AgentCall) -> AgentOutcome:
    """No agent gives itself this."""
    return AgentOutcome(kind="returned", rewards={"primary": 0.25})


async def test_regrading_keeps_its_rewards_apart_and_a_replay_can_train_on_them(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack, served_grader(temporal, database, steady):
        await (await stack.start("judged", run_file(data="train.jsonl", steps=2))).result()
        trained = await database.pool.fetch("select * from step_rollouts order by rollout_id")
        op = operator(temporal, database)
        result = await op.regrade("judged", Regrade(grader="judge", actor="ada"))
        counts = await temporal.get_workflow_handle(result.after["workflow"]).result()
        assert (counts["graded"], counts["failed"]) == (16, 0)
        again = await op.regrade("judged", Regrade(grader="judge"))
        assert (await temporal.get_workflow_handle(again.after["workflow"]).result())["graded"] == 0
        assert await database.pool.fetch("select * from step_rollouts order by rollout_id") == trained
        await op.start_derived("judged", Replay(name="by-judge", set={"grader": "judge"}))
        await finished(temporal, "by-judge")
    rewards = await database.pool.fetch(
        "select grader, count(*) as n, min(value) as low from rewards group by 1 order by 1"
    )
    assert [tuple(row) for row in rewards] == [("agent", 16, 0.0), ("judge", 16, 0.25)]
    used = await database.pool.fetch("select distinct run, grader, reward from step_rollouts order by 1, 2, 3")
    assert [tuple(row) for row in used] == [
        ("by-judge", "judge", 0.25),
        ("judged", "agent", 0.0),
        ("judged", "agent", 1.0),
    ]
    assert await check_store(database) == []
    [row, _] = await audit(database, "judged")
    assert (row["actor"], row["action"], row["after"]) == ("ada", "regrade", {"grader": "judge", "attempts": 16})


async def test_a_grader_that_fails_leaves_no_reward_and_the_rest_is_graded(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)

    async def flaky(call: AgentCall) -> AgentOutcome:
        if call.call_id.startswith(spoiled):
            return AgentOutcome(kind="raised", error=AgentError("ValueError", "no idea", ""))
        return AgentOutcome(kind="returned", rewards={"primary": 0.5})

    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("flaky", run_file(data="train.jsonl", steps=1))).result()
        spoiled = await database.pool.fetchval("select final_attempt from rollouts order by rollout_id limit 1")
        async with served_grader(temporal, database, flaky):
            result = await operator(temporal, database).regrade("flaky", Regrade(grader="judge"))
            counts = await temporal.get_workflow_handle(result.after["workflow"]).result()
    assert (counts["graded"], counts["failed"]) == (7, 1)
    assert await database.pool.fetchval("select count(*) from rewards where grader = 'judge'") == 7


@pytest.mark.parametrize(
    ("grader", "reason"),
    [("agent", "serve the changed grader under another name"), ("stranger", "no runner serves grader 'stranger'")],
)
async def test_an_invalid_regrade_is_refused_with_the_reason(
    temporal: Client, database: Database, tmp_path: Path, grader: str, reason: str
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path, prefix="relight-runner") as stack:
        await (await stack.start("fixed", run_file(data="train.jsonl", steps=1))).result()
        async with served_grader(temporal, database, steady):
            op = operator(temporal, database)
            result = await op.regrade("fixed", Regrade(grader=grader))
            with pytest.raises(WorkflowFailureError) as failure:
                await temporal.get_workflow_handle(result.after["workflow"]).result()
    cause: Any = failure.value.cause
    assert reason in str(cause.cause)
