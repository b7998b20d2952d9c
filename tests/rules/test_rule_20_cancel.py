"""Rule 20: a cancelled run cancels its open batches and waits for them, bounded; no rollout stays open."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.store.database import Database
from tests.integration.operators.kit import Gate, at
from tests.support.orchestration import cluster, eventually, run_file, write_tasks

FILE = run_file(data="train.jsonl")


async def test_when_a_cancelled_run_has_ended_its_batches_have_too_and_its_agents_follow_at_once(
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

        async def nobody_is_left() -> bool:
            return gate.under_way == 0

        await eventually(nobody_is_left)
    assert batch.status is not None
    assert batch.status.name == "CANCELED"
    statuses = await database.pool.fetch("select status, count(*) as n from rollouts where run = 'over' group by 1")
    assert [tuple(row) for row in statuses] == [("cancelled", 8)]
    assert await database.pool.fetchval("select count(*) from attempts where ended_at is null") == 0


async def test_a_batch_closes_rows_whose_child_ended_without_one_and_makes_up_for_them(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    victim = "mute-s0001-g00-i0"
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("mute", run_file(data="train.jsonl", steps=1))
        await gate.until(lambda: bool(gate.held))
        await temporal.get_workflow_handle(f"rollout/{victim}").terminate("without a word")
        await handle.result()
        gate.open.set()
    row = await database.pool.fetchrow("select status, failure_class from rollouts where rollout_id = $1", victim)
    assert tuple(row) == ("failed", "infrastructure")
    assert await database.pool.fetchval("select count(*) from rollouts where fill_up = 1") == 1
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'mute'") == 8
