"""A run that lacks a runner or a GPU worker says so instead of hanging in silence."""

from __future__ import annotations

from pathlib import Path

from temporalio.client import Client

from relight.activities.orchestrator import OrchestratorActivities
from relight.store.database import Database
from relight.types import names
from relight.worker.orchestrator import activities_of, make_worker
from tests.support.orchestration import eventually, run_file, write_tasks


async def test_a_run_whose_agent_no_runner_serves_shows_it_in_its_row_its_query_and_the_web_ui(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    activities = activities_of(OrchestratorActivities(database, temporal, tmp_path))
    async with make_worker(temporal, names.ORCHESTRATOR_QUEUE, activities):
        handle = await temporal.start_workflow(
            names.TRAINING_WORKFLOW,
            run_file(agent="unknown"),
            id=names.train_id("lonely"),
            task_queue=names.ORCHESTRATOR_QUEUE,
        )

        async def waiting_for() -> str | None:
            return await database.pool.fetchval("select waiting_for from runs where run = 'lonely'")

        reason = await eventually(waiting_for)
        assert reason.startswith("no runner serves agent 'unknown' (task queue relight-runner.unknown)")
        assert "relight runner" in reason

        async def shown() -> bool:
            progress = await handle.query(names.PROGRESS)
            return progress["phase"] == "waiting" and progress["waiting_for"] == reason

        await eventually(shown)
        metadata = await handle.query("__temporal_workflow_metadata")
        assert "no runner serves agent" in str(metadata)
        await handle.cancel()
