"""Temporal's own commands, by its own command line: reset, terminate, and pause, unpause and reset of activities."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from relight.stack import temporal_server
from relight.store.database import Database
from relight.types.names import train_id
from relight.types.wire import FinishRequest, OpenedAttempt
from relight.workflows.unknown_type import KNOWN
from tests.integration.operators.kit import Gate, at, audit, run_is, trained_twice
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks

FILE = run_file(data="train.jsonl")


JSON = '{"agent": "echo"}'


class TemporalCommand:
    """`temporal`, pointed at the server of the tests."""

    def __init__(self, binary: Path, address: str) -> None:
        self.binary = binary
        self.address = address

    async def __call__(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            str(self.binary),
            *arguments,
            "--address",
            self.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()


@pytest.fixture
async def command(temporal_address: str, tmp_path: Path) -> TemporalCommand:
    return TemporalCommand((await temporal_server.obtain(tmp_path)).path, temporal_address)


async def last_of(handle: WorkflowHandle[Any, Any], activity: str) -> int:
    """The workflow task that scheduled the last activity of a kind."""
    found = 0
    async for event in handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == activity:
            found = scheduled.workflow_task_completed_event_id
    return found


async def check_whole(database: Database, run: str, epoch: int) -> None:
    row = await database.pool.fetchrow("select status, epoch, error from runs where run = $1", run)
    assert tuple(row) == ("finished", epoch, None)
    assert await trained_twice(database, run) == 0
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = $1", run) == 24


@pytest.mark.parametrize("to", ["FirstWorkflowTask", "LastWorkflowTask"])
async def test_a_live_run_that_is_reset_repeats_nothing_that_is_recorded(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand, to: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        await stack.start("rewound", FILE)
        await gate.until(lambda: bool(gate.held))
        await command("workflow", "reset", "-w", train_id("rewound"), "--type", to, "--reason", "for the test")
        gate.open.set()
        await temporal.get_workflow_handle(train_id("rewound")).result()
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert set(stack.runner.ran.values()) == {1}
    await check_whole(database, "rewound", epoch=1)


@pytest.mark.parametrize("to", ["the start", "the open step"])
async def test_a_failed_run_that_is_reset_continues_in_a_new_epoch(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand, to: str
) -> None:
    write_tasks(tmp_path)
    broken = ApplicationError("no such key", type="ConfigError", non_retryable=True)
    async with cluster(temporal, database, tmp_path) as stack:
        stack.gpu.fail = lambda step: broken if step == 2 else None
        handle = await stack.start("mended", FILE)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert await run_is(database, "mended", "failed")()
        stack.gpu.fail = lambda step: None
        ran = dict(stack.runner.ran)
        where = ["--type", "FirstWorkflowTask"]
        if to == "the open step":
            where = ["--event-id", str(await last_of(handle, "plan_step"))]
        await command("workflow", "reset", "-w", train_id("mended"), *where, "--reason", "for the test")
        await temporal.get_workflow_handle(train_id("mended")).result()
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert {name: stack.runner.ran[name] for name in ran} == ran
    await check_whole(database, "mended", epoch=2)
    assert [row["action"] for row in await audit(database, "mended")] == ["resume"]


async def test_a_finished_run_that_is_reset_replays_what_is_recorded_and_changes_nothing(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        handle = await stack.start("done", FILE)
        await handle.result()
        before = await database.pool.fetch("select * from runs where run = 'done'")
        for where in (["--type", "FirstWorkflowTask"], ["--event-id", str(await last_of(handle, "plan_step"))]):
            run = ["--run-id", str(handle.first_execution_run_id)]
            await command("workflow", "reset", "-w", train_id("done"), *run, *where, "--reason", "for the test")
            await temporal.get_workflow_handle(train_id("done")).result()
    assert await database.pool.fetch("select * from runs where run = 'done'") == before
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert set(stack.runner.ran.values()) == {1}


async def test_a_terminated_rollout_is_replaced_and_a_terminated_batch_is_started_again(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0", "s0001-g01-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("failing", run_file(data="train.jsonl", steps=1))
        await gate.until(lambda: len(gate.held) == 2)
        await command("workflow", "terminate", "-w", "rollout/failing-s0001-g00-i0", "--reason", "for the test")
        await command("workflow", "terminate", "-w", "train/failing/step-1/batch-0", "--reason", "for the test")
        gate.open.set()
        await handle.result()
    rows = await database.pool.fetch(
        "select failure_class, count(*) as n from rollouts group by 1 order by 1 nulls last"
    )
    assert [tuple(row) for row in rows] in ([(None, 8)], [("infrastructure", 1), (None, 8)])
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'failing'") == 8


@pytest.mark.parametrize("way", ["pause", "reset"])
async def test_an_attempt_whose_activity_is_paused_or_reset_ends_and_is_made_again_without_costing_a_try(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand, way: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    rollout = "held-s0001-g00-i0"

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        return await (gate(attempt) if attempt.sequence_id == 1 else always_right(attempt))

    activity = ["-w", f"rollout/{rollout}", "-a", "1"]
    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("held", run_file(data="train.jsonl", steps=1))
        await gate.until(lambda: rollout in gate.held)
        await command("activity", way, *activity)
        if way == "pause":

            async def interrupted() -> bool:
                return gate.under_way == 0

            await eventually(interrupted)
            assert stack.runner.ran[rollout] == 1
            await command("activity", "unpause", *activity)
        await handle.result()
    row = await database.pool.fetchrow("select status, attempts from rollouts where rollout_id = $1", rollout)
    assert tuple(row) == ("succeeded", 2)
    text = "select try_number, failure_class from attempts where rollout_id = $1 order by sequence_id"
    tries = await database.pool.fetch(text, rollout)
    assert [tuple(attempt) for attempt in tries] == [(1, "infrastructure"), (1, None)]
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'held'") == 8


async def test_an_update_whose_activity_is_paused_waits_and_is_made_once_it_is_unpaused(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        stack.gpu.fail = lambda step: ApplicationError("try later", type="LeaseLostError")
        handle = await stack.start("poised", run_file(data="train.jsonl", steps=1))

        async def updating() -> str | None:
            pending = (await handle.describe()).raw_description.pending_activities
            names = [activity.activity_id for activity in pending if activity.activity_type.name == "update_policy"]
            return names[0] if names else None

        activity = ["-w", train_id("poised"), "-a", await eventually(updating)]
        await command("activity", "pause", *activity)
        stack.gpu.fail = lambda step: None

        async def paused() -> bool:
            """No try is under way, and the server starts no other."""
            pending = (await handle.describe()).raw_description.pending_activities
            return [activity.state for activity in pending] == [PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED]

        await eventually(paused)
        assert dict(stack.gpu.updates) == {}
        await command("activity", "unpause", *activity)
        await handle.result()
    assert dict(stack.gpu.updates) == {1: 1}


UNDECODABLE = "the workflow's input can't be decoded: Invalid JSON:"
WRONG_STARTS = {
    "a run without input": ("TrainingWorkflow", [], "takes one input, the run file as JSON, and got 0"),
    "a run with two inputs": ("TrainingWorkflow", [JSON, JSON], "takes one input, the run file as JSON, and got 2"),
    "a run whose input is no object": ("TrainingWorkflow", ["3"], "run file: "),
    "a misspelt type": ("TrainningWorkflow", [JSON], "did you mean TrainingWorkflow?"),
    "a type that is like none": ("Fly", [], "a run is started as TrainingWorkflow"),
    "a regrade without input": ("RegradeWorkflow", [], "takes one input, a RegradeInput as JSON, and got 0"),
    "a batch with two inputs": ("RolloutBatchWorkflow", [JSON, JSON], "takes one input, a BatchInput as JSON"),
    "a rollout that names no queue": ("RolloutWorkflow", ['{"rollout_id": "x"}'], "RolloutWorkflow: queue"),
    "an evaluation of a text": ("EvaluationWorkflow", ['"version 3"'], "EvaluationWorkflow: "),
    "a run with half a character": ("TrainingWorkflow", [r'{"agent": "\ud800"}'], f"{UNDECODABLE} unexpected end"),
    "a run with a huge number": ("TrainingWorkflow", ['{"agent": 1' + "0" * 5000 + "}"], f"{UNDECODABLE} number out"),
    **{f"a deeply nested {kind}": (kind, ["[" * 400 + "]" * 400], f"{UNDECODABLE} recursion limit") for kind in KNOWN},
}


@pytest.mark.parametrize("kind", WRONG_STARTS)
async def test_a_workflow_with_invalid_input_fails_at_once_with_the_valid_form(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand, kind: str
) -> None:
    workflow_type, inputs, message = WRONG_STARTS[kind]
    given = [word for text in inputs for word in ("--input", text)]
    async with cluster(temporal, database, tmp_path):
        await command(
            *("workflow", "start", "--type", workflow_type, "--task-queue", "relight", "-w", "train/wrong"), *given
        )
        async with asyncio.timeout(10):
            with pytest.raises(WorkflowFailureError) as failure:
                await temporal.get_workflow_handle("train/wrong").result()
    assert message in str(failure.value.cause)
    assert await database.pool.fetchval("select count(*) from runs") == 0
