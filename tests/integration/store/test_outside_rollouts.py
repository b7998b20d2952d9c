"""Rollouts from outside that belong to a run: its engines serve them, and nothing that the run counts has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from relight.datasets import load_tasks
from relight.errors import ConflictError
from relight.store.database import Database
from relight.store.maintenance.check import check_store
from relight.store.postgres import PostgresLightningStore
from relight.store.runs import health, lifecycle
from relight.store.runs.rows import get_run
from relight.store.runs.views import RolloutFilter, RunViews
from relight.store.training import plans
from relight.types import names
from relight.types.payloads import BeginInput, FinishInput
from relight.types.rollout import FailureClass, Rollout
from relight.types.store import Dispatch
from tests.rules.kit import ManualRun, begin
from tests.support.lightning_kit import claimed, rollout_of
from tests.support.store_kit import call

BY_WORKFLOW = Dispatch(by="workflow", agent="calculator")
RUN = "mine"


@pytest.fixture
async def store(database: Database) -> AsyncGenerator[PostgresLightningStore]:
    """What enqueues."""
    made = await PostgresLightningStore.create(database)
    yield made
    await made.aclose()


async def started(database: Database, folder: Path, **changes: Any) -> ManualRun:
    """A run whose engine holds the given model."""
    run = await begin(database, folder, RUN, **changes)
    version = "insert into policy_versions (run, version, weights_hash, export_path) values ($1, 0, 'w0', 'nowhere')"
    await database.pool.execute(version, RUN)
    return run


async def enqueue(store: PostgresLightningStore, run: ManualRun, failure: FailureClass | None = None) -> Rollout:
    """A rollout from outside that has ended, well with a large reward if not so."""
    made = await store.enqueue_rollout("x", "train", dispatch=BY_WORKFLOW, run=RUN)
    await run.play(made.rollout_id, 100.0, failure)
    return made


async def test_a_step_and_an_evaluation_count_what_their_run_planned_alone(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path)
    waiting = await store.enqueue_rollout("x", "val", run=RUN)
    for failure in (None, FailureClass.AGENT_ERROR):
        await enqueue(store, run, failure)
    plan = await run.plan(1)
    await enqueue(store, run, FailureClass.INFRASTRUCTURE)
    assert plan.rollouts == len(await run.rollouts(1))
    await run.play_all(1)
    report = (await run.advance(1)).report
    assert report is not None
    assert (report.succeeded, report.failed, report.failures) == (plan.rollouts, 0, {})
    await run.update(1)
    (step,) = await RunViews(database).steps(RUN)
    assert (step.rollouts.planned, step.rollouts.failed) == (plan.rollouts, 0)
    evaluated = await plans.plan_evaluation(database, run.step_input(1))
    await run.play_all(1, "eval")
    await run.advance(1, kind="eval")
    result = await plans.record_evaluation(database, run.step_input(1))
    assert (result.rewarded, result.failed) == (evaluated.rollouts, 0)
    assert result.score is not None
    assert result.score <= 1.0
    assert await check_store(database) == []
    listed = await RunViews(database).rollouts(RUN, RolloutFilter(kind="external"))
    assert [(one.step, one.final_attempt) for one in listed.items] == [(None, None)] * 4
    query = "select count(*) from step_rollouts join rollouts using (rollout_id) where kind = 'external'"
    assert await database.pool.fetchval(query) == 0
    assert (await rollout_of(store, waiting.rollout_id)).status == "queuing"


async def test_failures_from_outside_pause_no_run(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path)
    await run.plan(1)
    for _ in range(5):
        await enqueue(store, run, FailureClass.AGENT_ERROR)
    await run.play_all(1)
    assert (await run.advance(1)).report is not None
    assert not await run.value("paused")


async def test_a_stalled_run_is_told_of_its_own_attempts_alone(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path, failures={"stalled_after_seconds": 1})
    made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN)
    await run.opened(made.rollout_id)
    await database.pool.execute("update runs set created_at = now() - interval '1 hour'")
    (stall,) = await health.find_stalls(database)
    assert "no attempt is under way" in stall.warnings[health.STALLED]


async def test_a_run_retries_none_and_cancels_one_on_request(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path)
    failed = await enqueue(store, run, FailureClass.AGENT_ERROR)
    refused = await run.change("retry_rollout", {"rollout_id": failed.rollout_id})
    assert (refused.accepted, "came from outside" in refused.reason) == (False, True)
    assert not (await run.change("retry_failed", {})).accepted
    assert (await rollout_of(store, failed.rollout_id)).status == "failed"
    made = await store.enqueue_rollout("x", run=RUN)
    await claimed(store)
    assert (await run.change("cancel_rollout", {"rollout_id": made.rollout_id})).accepted
    assert (await rollout_of(store, made.rollout_id)).status == "cancelled"
    assert await check_store(database) == []


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
async def test_the_end_of_a_run_cancels_what_is_open_and_stops_its_workflow(
    database: Database, store: PostgresLightningStore, tmp_path: Path, status: str
) -> None:
    run = await started(database, tmp_path)
    begun = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN)
    await run.opened(begun.rollout_id)
    ended = await enqueue(store, run)
    await database.pool.execute("update outbox set started_at = now()")
    unbegun = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN)
    await lifecycle.finish_run(database, FinishInput(run=RUN, epoch=1, status=status))  # type: ignore[arg-type]
    for rollout in (begun, unbegun):
        view = await RunViews(database).rollout(rollout.rollout_id)
        assert (view.status, view.failure_class, view.failure) == ("cancelled", "cancelled", "its run ended")
    assert (await rollout_of(store, ended.rollout_id)).status == "succeeded"
    orders = await database.pool.fetch(
        "select workflow_type, workflow_id from outbox where started_at is null and workflow_id like 'rollout/%'"
    )
    cancelled = {order["workflow_id"] for order in orders if order["workflow_type"] == "cancel"}
    assert {names.rollout_workflow_id(rollout.rollout_id) for rollout in (begun, unbegun)} <= cancelled
    assert all(order["workflow_type"] == "cancel" for order in orders)
    assert await check_store(database) == []


async def test_a_run_that_continues_again_leaves_what_was_cancelled_and_takes_more(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path)
    open_one = await store.enqueue_rollout("x", run=RUN)
    by_temporal = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN)
    await store.cancel_rollout(by_temporal.rollout_id, names.CANCELLED_WORKFLOW)
    await run.change("cancel", {})
    with pytest.raises(ConflictError, match="being cancelled"):
        await store.enqueue_rollout("x", run=RUN)
    await lifecycle.finish_run(database, FinishInput(run=RUN, epoch=1, status="cancelled"))
    lifts = (await get_run(database, RUN)).cancel_requested
    again = BeginInput(run=RUN, driver="another", file=run.file, epoch=1, lifts=lifts)
    train, held_out = (load_tasks(f"{part}.jsonl", tmp_path) for part in ("train", "heldout"))
    await lifecycle.begin_run(database, again, train, held_out)
    for rollout in (open_one, by_temporal):
        assert (await rollout_of(store, rollout.rollout_id)).status == "cancelled"
    assert (await store.enqueue_rollout("x", run=RUN)).status == "queuing"


async def test_one_that_is_enqueued_while_its_run_ends_is_refused(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    await started(database, tmp_path)
    async with database.transaction() as tx:
        await lifecycle.close_run(tx, await get_run(tx, RUN, lock=True), "finished")
        enqueuing = asyncio.create_task(store.enqueue_rollout("x", run=RUN))
        _, waiting = await asyncio.wait([enqueuing], timeout=0.2)
        assert waiting
    with pytest.raises(ConflictError, match="finished"):
        await enqueuing
    assert await check_store(database) == []


async def test_a_runs_grader_judges_what_a_workflow_drives_and_no_claim(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path, grader="judge", runner_queue="own")
    driven = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN)
    queue = "select input ->> 'grader_queue' from outbox where workflow_id = $1"
    assert await database.pool.fetchval(queue, names.rollout_workflow_id(driven.rollout_id)) == "own.judge"
    assert (await run.opened(driven.rollout_id)).grader == "judge"
    await store.enqueue_rollout("x", run=RUN)
    await claimed(store)
    graded = [
        (await database.one("agent_of_token", row["token_hash"]))["graded"]
        for row in await database.pool.fetch("select token_hash from attempts order by started_at")
    ]
    assert graded == [True, False]


async def test_a_day_is_kept_for_an_open_rollout_by_its_own_name(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    await started(database, tmp_path)
    made = await store.enqueue_rollout("x", run=RUN)
    assert [row["holder"] for row in await database.fetch("retention_needed")] == [f"rollout {made.rollout_id}"]


async def test_the_calls_of_an_algorithm_are_a_rollout_of_its_run_with_one_attempt(
    database: Database, tmp_path: Path
) -> None:
    run = await started(database, tmp_path)
    insert = "insert into rollouts (rollout_id, kind, run) values ('calls', 'algorithm', $1)"
    await database.pool.execute(insert, RUN)
    attempt = await run.opened("calls")
    assert (attempt.run, attempt.step, attempt.model) == (RUN, None, names.POLICY)
    await run.store.commit_generations([call(attempt, 1, delivered="yes", engine_id=f"engine-of-{RUN}")])
    assert await check_store(database) == []
    plan = await run.plan(1)
    await run.play_all(1)
    report = (await run.advance(1)).report
    assert report is not None
    assert report.succeeded == plan.rollouts


async def test_attempts_wait_until_each_policy_of_their_run_has_an_engine(
    database: Database, store: PostgresLightningStore, tmp_path: Path
) -> None:
    run = await started(database, tmp_path)
    await run.plan(1)
    rollouts = [(await store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN)).rollout_id]
    rollouts.append(names.planned_rollout_id(RUN, 1, 0, 0, False))
    await database.pool.execute(
        "insert into engines (engine_id, host, run, policy, url, model, state)"
        " select 'e2', host, run, 'second', url, 'second', 'starting' from engines where run = $1",
        RUN,
    )
    for rollout_id in rollouts:
        answer = await run.open(rollout_id)
        assert (answer.state, answer.reason) == ("wait", "no engine is ready")
    await database.pool.execute("update engines set state = 'ready' where engine_id = 'e2'")
    assert [(await run.open(rollout_id)).state for rollout_id in rollouts] == ["opened", "opened"]
