"""Rule 1: opening is keyed by rollout, try and execution, and answers opened, finished, wait or gone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from relight.store.database import Database
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.integration.operators.kit import fails
from tests.rules.kit import begin
from tests.support.orchestration import always_right, cluster, run_file, write_tasks


async def test_a_runner_whose_answer_was_lost_gets_the_attempt_that_was_opened_for_it(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "lost")
    await run.plan(1)
    rollout = (await run.rollouts(1))[0]["rollout_id"]
    first = await run.opened(rollout, execution="e1")
    again = await run.opened(rollout, execution="e1")
    other = await run.opened(rollout, execution="e2")
    assert (again.attempt_id, again.fence, again.token) == (first.attempt_id, first.fence, first.token)
    assert other.attempt_id != first.attempt_id
    assert other.fence > first.fence
    assert (await run.open(rollout, execution="e1")).state == "gone"


async def test_each_answer_is_given_where_its_rule_says_so(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "answers")
    await run.plan(1)
    one, two, three, *_ = [row["rollout_id"] for row in await run.rollouts(1)]
    await run.end(await run.opened(one), 1.0)
    assert (await run.open(one)).state == "finished"
    await run.end(await run.opened(two), failure=FailureClass.AGENT_ERROR)
    assert (await run.open(two)).state == "finished"
    await run.change("pause", {})
    assert (await run.open(three)).state == "wait"
    assert (await run.rollouts(1))[2]["attempts"] == 0
    await run.change("resume", {})
    await database.pool.execute("update engines set state = 'dead'")
    assert (await run.open(three)).state == "wait"
    await run.change("cancel_rollout", {"rollout_id": three})
    assert (await run.open(three)).state == "gone"


async def test_tries_are_limited_and_rows_are_not(temporal: Client, database: Database, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    target = "tries-s0001-g00-i0"
    seen: Counter[str] = Counter()

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        seen[attempt.rollout_id] += 1
        if attempt.rollout_id != target or seen[target] == 4:
            return await always_right(attempt)
        if seen[target] == 2:
            return fails(attempt)
        raise ApplicationError("its runner died")

    retries = {"max_attempts": 2, "retry_condition": ["agent_error"], "backoff_seconds": 0.1}
    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("tries", run_file(steps=1, data="train.jsonl", rollout=retries))
        await handle.result()
    text = "select try_number, failure_class from attempts where rollout_id = $1 order by sequence_id"
    rows = await database.pool.fetch(text, target)
    assert [tuple(row) for row in rows] == [(1, "infrastructure"), (1, "agent_error"), (2, "infrastructure"), (2, None)]
