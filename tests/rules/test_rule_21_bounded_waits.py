"""Rule 21: a wait for a batch looks at its row; a lost signal costs a minute at most, and here a few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from relight.store.database import Database
from relight.types import names
from relight.types.payloads import BatchReport
from relight.workflows import training
from tests.integration.operators.kit import Gate, at
from tests.support.orchestration import cluster, eventually, run_file, write_tasks


async def test_a_run_whose_batchs_signal_was_lost_finds_the_report_in_the_row(
    temporal: Client, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: set[int] = set()
    """Steps whose signal was lost. A replay, as after a workflow task that timed out, hears it once more."""

    def ignoring(workflow: training.TrainingWorkflow, report: BatchReport) -> None:
        lost.add(report.step)

    definition = getattr(training.TrainingWorkflow, "__temporal_workflow_definition")
    signal = definition.signals[names.BATCH_DONE]
    monkeypatch.setitem(definition.signals, names.BATCH_DONE, type(signal)(**{**vars(signal), "fn": ignoring}))
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        await (await stack.start("ignoring", run_file(steps=2, data="train.jsonl") | {"check_seconds": 4})).result()
    assert lost == {1, 2}
    assert dict(stack.gpu.updates) == {1: 1, 2: 1}
    assert set(stack.runner.ran.values()) == {1}


async def test_a_terminated_batch_is_started_again_at_once_with_the_rollouts_that_ended_with_it(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("beheaded", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        batch = temporal.get_workflow_handle("train/beheaded/step-1/batch-0")
        ended = (await batch.describe()).run_id
        await batch.terminate("for the test")

        async def begun_again() -> bool:
            description = await batch.describe()
            return description.run_id != ended and description.status is WorkflowExecutionStatus.RUNNING

        async def its_attempt_has_ended() -> bool:
            text = "select count(ended_at) from attempts where rollout_id = 'beheaded-s0001-g00-i0'"
            return await database.pool.fetchval(text) == 1

        await eventually(begun_again, seconds=20)
        await eventually(its_attempt_has_ended)
        gate.open.set()
        await handle.result()
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'beheaded'") == 8
    assert {*stack.runner.ran.values()} == {1, 2}
