"""Runs whose rewards a grader gives."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.worker import serve
from relight.settings import Settings
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.rollout import FailureClass
from relight.types.wire import AgentError, FinishRequest, OpenedAttempt
from tests.support.gateway import listening_gateway
from tests.support.orchestration import always_right, cluster, eventually, run_file, served_grader, write_tasks
from tests.support.store_service import TOKEN, store_service

SERVED = """
def echo(task):
    print(task["question"])
    return "no number"

async def judge(task):
    return 0.75 if task["output"] == task["input"]["question"] + "\\n" and task["calls"] == [] else 0.0
"""


async def opposite(call: AgentCall) -> AgentOutcome:
    """0.75 where `always_right` gives 0, else 0.25: neither can be mistaken for the other."""
    even = int(call.task["output"][-1]) % 2 == 0
    return AgentOutcome(kind="returned", rewards={"primary": 0.25 if even else 0.75})


async def test_a_run_trains_on_its_graders_rewards_whatever_the_agent_returned(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack, served_grader(temporal, database, opposite):
        await (await stack.start("graded", run_file(steps=2, grader="judge"))).result()
    assert set(stack.runner.own_rewards.values()) == {0.0, 1.0}
    trained = await database.pool.fetch("select rollout_id, reward, grader from step_rollouts where run = 'graded'")
    assert len(trained) == 16
    assert {(int(row["rollout_id"][-1]) % 2, row["reward"], row["grader"]) for row in trained} == {
        (0, 0.25, "judge"),
        (1, 0.75, "judge"),
    }
    rewards = "select attempt_id, count(*) from rewards group by attempt_id having count(*) > 1"
    assert await database.pool.fetch(rewards) == []
    evaluated = "select count(*), min(reward), max(reward) from rollouts where run = 'graded' and kind = 'eval'"
    assert tuple(await database.pool.fetchrow(evaluated)) == (20, 0.25, 0.25)


async def test_a_grader_that_fails_shortens_no_group_and_an_agent_that_fails_is_not_graded(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    graded: list[str] = []

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.rollout_id.endswith("s0001-g01-i0"):
            return FinishRequest(
                attempt_id=attempt.attempt_id, fence=attempt.fence, failure_class=FailureClass.AGENT_ERROR
            )
        return await always_right(attempt)

    async def grader(call: AgentCall) -> AgentOutcome:
        graded.append(call.task["output"][-12:])
        if call.task["output"].endswith("s0001-g00-i0"):
            return AgentOutcome(kind="raised", error=AgentError("ValueError", "no idea", ""))
        return await opposite(call)

    tries = {"max_attempts": 3, "retry_condition": ["agent_error"], "backoff_seconds": 0.1}
    async with cluster(temporal, database, tmp_path, agent) as stack, served_grader(temporal, database, grader):
        await (await stack.start("misjudged", run_file(steps=1, grader="judge", rollout=tries))).result()
    rows = await database.pool.fetch(
        "select right(rollout_id, 12) as id, failure_class, failure, attempts from rollouts"
        " where run = 'misjudged' and failure_class is not null order by 1"
    )
    assert [tuple(row) for row in rows] == [
        ("s0001-g00-i0", "grader_error", "grader 'judge': ValueError: no idea", 1),
        ("s0001-g01-i0", "agent_error", None, 3),
    ]
    assert graded.count("s0001-g00-i0") == 1
    assert "s0001-g01-i0" not in graded
    groups = await database.pool.fetch(
        "select group_number, count(*) as size from step_rollouts where run = 'misjudged' group by 1 order by 1"
    )
    assert [row["size"] for row in groups] == [4, 3]


async def test_a_run_whose_grader_no_runner_serves_shows_it_and_continues_once_one_does(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    file = run_file(steps=1, grader="judge", runner_queue="lonely")
    async with cluster(temporal, database, tmp_path, prefix="lonely") as stack:
        handle = await stack.start("lonely", file)

        async def waiting() -> str | None:
            found = await database.pool.fetchval("select waiting_for from runs where run = 'lonely'")
            return found if found and "grader" in found else None

        reason = await eventually(waiting)
        assert reason.startswith("no runner serves grader 'judge' (task queue lonely.judge)")
        assert stack.runner.ran == {}
        async with served_grader(temporal, database, opposite, prefix="lonely"):
            await handle.result()
    counted = await database.pool.fetchval("select count(*) from step_rollouts where run = 'lonely'")
    assert counted == 8


async def test_a_run_that_is_cancelled_during_grading_closes_its_rollouts(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    thinking, ended = asyncio.Event(), asyncio.Event()

    async def grader(call: AgentCall) -> AgentOutcome:
        thinking.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async with cluster(temporal, database, tmp_path) as stack, served_grader(temporal, database, grader):
        handle = await stack.start("unjudged", run_file(steps=1, grader="judge", data={"train": "train.jsonl"}))
        await thinking.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await ended.wait()

        async def closed() -> bool:
            still_open = "select count(*) from attempts where ended_at is null"
            return not await database.pool.fetchval(still_open)

        await eventually(closed)
    rows = await database.pool.fetch("select distinct status, failure_class from rollouts where run = 'unjudged'")
    assert [tuple(row) for row in rows] == [("cancelled", "cancelled")]
    assert await database.pool.fetchval("select count(*) from rewards") == 0


async def test_a_runner_that_serves_agent_and_grader_completes_a_run(
    temporal: Client, temporal_address: str, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path, count=2)
    served = tmp_path / "served.py"
    served.write_text(SERVED)
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    async with (
        listening_gateway(store) as gateway,
        store_service(store, database) as url,
        cluster(temporal, database, tmp_path) as stack,
    ):
        services: dict[str, Any] = {
            "store_url": url,
            "gateway_url": gateway.origin,
            "temporal_address": temporal_address,
            "token": TOKEN,
        }
        settings = Settings(**services, runner_queue="real")
        runner = asyncio.create_task(serve(settings, [f"{served}:echo", f"{served}:judge"]))
        file = run_file(agent="echo", grader="judge", runner_queue="real", steps=1, group_size=2)
        await (await stack.start("parrots", file)).result()
        runner.cancel()
        with suppress(asyncio.CancelledError):
            await runner
    rewards = await database.pool.fetch(
        "select r.status, w.value, w.grader, count(*) from rollouts r join rewards w using (rollout_id)"
        " where r.run = 'parrots' group by 1, 2, 3"
    )
    assert [tuple(row) for row in rewards] == [("succeeded", 0.75, "judge", 8)]
