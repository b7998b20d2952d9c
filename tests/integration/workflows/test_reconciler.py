"""Postgres and Temporal disagree about who drives a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import Client

from relight.store.database import Database
from relight.types.wire import FinishRequest, OpenedAttempt
from relight.worker.reconciler import reconcile
from tests.support.orchestration import always_right, cluster, eventually, run_file, write_tasks


async def test_a_run_that_no_workflow_drives_is_interrupted_with_its_batches_and_can_be_driven_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    started, release = asyncio.Event(), asyncio.Event()

    async def agent(attempt: OpenedAttempt) -> FinishRequest:
        started.set()
        await release.wait()
        return await always_right(attempt)

    async with cluster(temporal, database, tmp_path, agent) as stack:
        handle = await stack.start("orphan", run_file(data="train.jsonl", steps=2))
        await started.wait()
        await database.pool.execute("update runs set created_at = now() - interval '1 minute'")
        assert await reconcile(database, temporal) == []
        await handle.terminate(reason="for the test")
        assert await reconcile(database, temporal) == ["orphan"]
        assert await reconcile(database, temporal) == []
        batch = temporal.get_workflow_handle("train/orphan/step-1/batch-0")

        async def batch_closed() -> bool:
            return (await batch.describe()).close_time is not None

        await eventually(batch_closed)
        status, error, again = await database.pool.fetchrow(
            "select status, error, drive_again_at from runs where run = 'orphan'"
        )
        assert (status, again) == ("interrupted", None)
        assert error == (
            f"no workflow drives it: train/orphan was terminated by {temporal.identity}, reason: for the test; "
            "`relight resume orphan` goes on with it"
        )
        release.set()
        await (await stack.start("orphan", run_file(data="train.jsonl", steps=2))).result()
    assert dict(stack.gpu.updates) == {1: 1, 2: 1}
    assert await database.pool.fetchval("select status from runs where run = 'orphan'") == "finished"
