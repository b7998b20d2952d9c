"""Rule 20: a cancel is a row and holds whatever dies; open batches are cancelled and waited for, bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from relight.datasets import load_tasks
from relight.errors import CancelRequestedError, ConflictError
from relight.operators import command_requests, command_transactions
from relight.operators.operator import Operator
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.store.runs.rows import watched_runs
from relight.store.runs.views import RunViews
from relight.store.training.plans import begin_update
from relight.types import names
from relight.types.commands import Resume
from relight.types.payloads import BeginInput, ChangeInput, FinishInput, StepInput
from relight.types.wire import FinishRequest, OpenedAttempt
from relight.worker.reconciler import compare, reconcile
from tests.integration.operators.kit import Gate, at, audit, fails, run_is
from tests.rules.kit import begin
from tests.rules.test_rule_19_epochs import REFUSED, activities
from tests.support import orchestration
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks

FILE = run_file(data="train.jsonl")
GOES_ON = {
    "close_rollout": "ends what is under way",
    "change_run": "answers that the run is being cancelled",
    "finish_run": "closes the run as cancelled",
}
"""Activities that a cancelled run still needs."""


async def test_when_a_cancelled_run_has_ended_its_batches_have_ended_and_its_agents_end_at_once(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(lambda attempt: attempt.mode == "train")
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("over", FILE)
        await gate.until(lambda: len(gate.held) == 8)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        batch = await temporal.get_workflow_handle("train/over/step-1/batch-0").describe()

        async def no_agent_is_left() -> bool:
            return gate.under_way == 0

        await eventually(no_agent_is_left)
    assert batch.status is not None
    assert batch.status.name == "CANCELED"
    statuses = await database.pool.fetch("select status, count(*) as n from rollouts where run = 'over' group by 1")
    assert [tuple(row) for row in statuses] == [("cancelled", 8)]
    assert await database.pool.fetchval("select count(*) from attempts where ended_at is null") == 0


async def test_a_batch_closes_rollouts_whose_child_workflow_ended_without_a_result_and_replaces_them(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    target = "mute-s0001-g00-i0"
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("mute", run_file(data="train.jsonl", steps=1))
        await gate.until(lambda: bool(gate.held))
        await temporal.get_workflow_handle(f"rollout/{target}").terminate("without a word")
        await handle.result()
        gate.open.set()
    row = await database.pool.fetchrow("select status, failure_class from rollouts where rollout_id = $1", target)
    assert tuple(row) == ("failed", "infrastructure")
    assert await database.pool.fetchval("select count(*) from rollouts where fill_up = 1") == 1
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'mute'") == 8


async def test_a_cancel_during_an_update_ends_the_run_even_if_the_gpu_host_is_lost_meanwhile(
    temporal: Client, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tasks(tmp_path)
    updating, lost = asyncio.Event(), asyncio.Event()

    async def begin_and_lose_the_host(*_: Any) -> None:
        updating.set()
        await lost.wait()
        raise ApplicationError("the host is gone", type="HostChangedError", non_retryable=True)

    monkeypatch.setattr(orchestration, "begin_update", begin_and_lose_the_host)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("hostless", FILE)
        await updating.wait()
        await handle.execute_update("cancel", {"actor": "ada"})
        lost.set()
        await eventually(run_is(database, "hostless", "cancelled"), seconds=15)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status.name == "CANCELED"
    assert not stack.gpu.updates


async def cancel(database: Database, run: str) -> None:
    """As `relight cancel` does: nothing but rows."""
    answer = await command_requests.add_request(database, f"cancel-{run}", run, names.CANCEL, {"actor": "ada"})
    assert answer.result is not None


async def test_of_a_cancelled_run_nothing_is_planned_opened_updated_or_begun(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "driven")
    await run.plan(1)
    await cancel(database, "driven")
    tables = ("steps", "rollouts", "attempts", "metrics", "gpu_hosts")

    async def facts() -> list[Any]:
        return [await database.pool.fetch(f"select * from {table} order by 1, 2") for table in tables]

    before = await facts()
    asked = activities(database, temporal, tmp_path)
    for name in REFUSED.keys() - GOES_ON.keys():
        with pytest.raises(CancelRequestedError):
            await asked[name](REFUSED[name])
    opened = await run.open("driven-s0001-g00-i0")
    assert (opened.state, opened.reason) == ("gone", "the run is being cancelled")
    again = BeginInput(run="driven", driver="another", file=run.file)
    for asks in (again, again.model_copy(update={"epoch": 1}), again.model_copy(update={"driver": "driver"})):
        with pytest.raises(CancelRequestedError, match="`relight resume driven` drives it again"):
            await lifecycle.begin_run(database, asks, *(load_tasks("train.jsonl", tmp_path),) * 2)
    paused = ChangeInput(run="driven", epoch=1, action="pause", request_key="p", value={})
    assert (await command_transactions.change_run(database, paused)).reason == "the run is being cancelled"
    with pytest.raises(CancelRequestedError):
        await lifecycle.finish_run(database, FinishInput(run="driven", epoch=1, status="finished"))
    assert await facts() == before
    await lifecycle.finish_run(database, FinishInput(run="driven", epoch=1, status="failed", error="no disk"))
    assert (await run.value("status"), await run.value("error")) == ("cancelled", "no disk")


async def test_a_workflow_reads_a_cancel_from_the_row_and_only_a_resume_lifts_it(
    temporal: Client, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tasks(tmp_path)
    updating, go = asyncio.Event(), asyncio.Event()

    async def begin_later(db: Database, step_input: StepInput) -> None:
        updating.set()
        await go.wait()
        await begin_update(db, step_input)

    monkeypatch.setattr(orchestration, "begin_update", begin_later)
    operator = Operator(temporal, RunViews(database), names.ORCHESTRATOR_QUEUE)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("rowed", FILE)
        await updating.wait()
        await cancel(database, "rowed")
        with pytest.raises(ConflictError, match="being cancelled"):
            await operator.resume("rowed", Resume())
        go.set()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status.name == "CANCELED"
        assert await run_is(database, "rowed", "cancelled")()
        assert not stack.gpu.updates
        with pytest.raises(WorkflowFailureError) as refusal:
            await (await stack.start("rowed", FILE)).result()
        assert "`relight resume rowed` drives it again" in str(refusal.value.cause.cause)  # type: ignore[union-attr]
        await operator.resume("rowed", Resume(actor="bob"))
        await temporal.get_workflow_handle(names.train_id("rowed")).result()
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    done = [(row["actor"], row["action"]) for row in await audit(database, "rowed") if not row["refused"]]
    assert done == [("ada", "cancel"), ("bob", "resume")]


@pytest.mark.parametrize("driven", [True, False])
async def test_the_reconciler_repeats_a_cancel_and_closes_a_run_that_has_no_workflow(
    temporal: Client, database: Database, tmp_path: Path, driven: bool
) -> None:
    write_tasks(tmp_path)
    name = f"repeated-{driven}".lower()
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start(name, FILE)
        await gate.until(lambda: bool(gate.held))
        await cancel(database, name)
        if not driven:
            await handle.terminate(reason="for the test")
        assert await reconcile(database, temporal) == ([] if driven else [name])
        await eventually(run_is(database, name, "cancelled"))
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await database.pool.execute("update runs set created_at = now() - interval '1 hour'")
        assert await reconcile(database, temporal) == []
        batch = temporal.get_workflow_handle(f"train/{name}/step-1/batch-0")

        async def batch_has_ended() -> bool:
            return (await batch.describe()).close_time is not None

        await eventually(batch_has_ended)
    assert (await handle.describe()).status.name == ("CANCELED" if driven else "TERMINATED")
    assert await database.pool.fetchval("select count(*) from attempts where ended_at is null") == 0
    assert [(row["actor"], row["action"]) for row in await audit(database, name)] == [("ada", "cancel")]


async def test_a_cancel_that_comes_after_a_resume_holds_though_that_has_yet_to_begin(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "pending")
    await database.value("interrupt_run", "pending", 1, "terminated", False, [0.0])
    operator = Operator(temporal, RunViews(database), names.ORCHESTRATOR_QUEUE)
    await operator.resume("pending", Resume(actor="bob"))  # no orchestrator is up
    await cancel(database, "pending")
    async with cluster(temporal, database, tmp_path):
        with pytest.raises(WorkflowFailureError):
            await temporal.get_workflow_handle(names.train_id("pending")).result()
        assert await reconcile(database, temporal) == ["pending"]
        assert (await run.value("status"), await run.value("epoch")) == ("cancelled", 1)
        await operator.resume("pending", Resume(actor="bob"))  # after the cancel: it is lifted
        await temporal.get_workflow_handle(names.train_id("pending")).result()
    assert await run.value("status") == "finished"


async def test_a_cancel_through_temporal_holds_even_if_the_update_in_progress_ends_first(
    temporal: Client, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tasks(tmp_path)
    updating, go = asyncio.Event(), asyncio.Event()

    async def begin_later(db: Database, step_input: StepInput) -> None:
        updating.set()
        await go.wait()
        await begin_update(db, step_input)

    monkeypatch.setattr(orchestration, "begin_update", begin_later)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("heedful", FILE)
        await updating.wait()
        await handle.cancel()
        go.set()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status.name == "CANCELED"
    assert await run_is(database, "heedful", "cancelled")()
    assert dict(stack.gpu.updates) == {1: 1}


@pytest.mark.parametrize("by", ["cancel", "signal"])
async def test_a_rollout_whose_try_fails_before_its_cancel_arrives_is_not_retried(
    temporal: Client, database: Database, tmp_path: Path, by: str
) -> None:
    write_tasks(tmp_path)
    held, go, target = asyncio.Event(), asyncio.Event(), f"retried-{by}-s0001-g00-i0"

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        if attempt.rollout_id != target:
            return await always_right(attempt)
        held.set()
        await go.wait()
        return fails(attempt)

    tries = {"max_attempts": 4, "retry_condition": ["agent_error"], "backoff_seconds": 0.1}
    async with cluster(temporal, database, tmp_path, agent) as stack:
        file = run_file(data={"train": "train.jsonl"}, steps=1, rollout=tries)
        run = await stack.start(f"retried-{by}", file)
        await held.wait()
        rollout = temporal.get_workflow_handle(f"rollout/{target}")
        await (rollout.cancel() if by == "cancel" else rollout.signal("cancel", "enough"))
        go.set()
        await run.result()
        assert stack.runner.ran[target] == 1
    assert await database.pool.fetchval("select status from rollouts where rollout_id = $1", target) == "cancelled"


async def test_a_reconciler_that_read_a_run_before_its_resume_does_not_cancel_it_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    operator = Operator(temporal, RunViews(database), names.ORCHESTRATOR_QUEUE)
    async with cluster(temporal, database, tmp_path, gate) as stack:
        await stack.start("stale", FILE)
        await gate.until(lambda: bool(gate.held))
        await cancel(database, "stale")
        (seen,) = await watched_runs(database)
        await reconcile(database, temporal)
        await eventually(run_is(database, "stale", "cancelled"))
        gate.open.set()
        await operator.resume("stale", Resume(actor="bob"))
        assert not await compare(database, temporal, names.ORCHESTRATOR_QUEUE, seen)
        await temporal.get_workflow_handle(names.train_id("stale")).result()
    assert await run_is(database, "stale", "finished")()


async def test_two_concurrent_resumes_start_one_workflow_and_both_succeed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "twice")
    await database.value("interrupt_run", "twice", 1, "terminated", False, [0.0])
    operator = Operator(temporal, RunViews(database), names.ORCHESTRATOR_QUEUE)
    both = await asyncio.gather(operator.resume("twice", Resume()), operator.resume("twice", Resume()))
    assert [answer.accepted for answer in both] == [True, True]
    async with cluster(temporal, database, tmp_path):
        await temporal.get_workflow_handle(names.train_id("twice")).result()
    assert (await run.value("status"), await run.value("epoch")) == ("finished", 2)
