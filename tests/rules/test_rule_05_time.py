"""Rule 5: queue time and paused time count for no deadline, and the platform's own deadline is far away."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from relight.observability.process_reports import Doing
from relight.runner.attempt_activity import RunnerActivities
from relight.runner.process_isolation import IsolatedRunner
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.types import names
from tests.rules.test_rule_03_platform_failures import NOWHERE, Present
from tests.support.orchestration import cluster, eventually, run_file, write_tasks
from tests.unit.runner import misbehaving_agents

FILE = run_file(agent="well", steps=1, data="train.jsonl", rollout={"timeout_seconds": 1.5})


async def scheduled(handle: WorkflowHandle[Any, Any]) -> list[timedelta]:
    """Schedule-to-close of each attempt that a rollout's workflow asked for."""
    events = [event async for event in handle.fetch_history_events()]
    found = [event.activity_task_scheduled_event_attributes for event in events]
    return [
        item.schedule_to_close_timeout.ToTimedelta() for item in found if item.activity_type.name == names.RUN_ATTEMPT
    ]


async def test_rollouts_that_waited_in_a_queue_and_a_pause_for_longer_than_their_timeout_succeed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with (
        cluster(temporal, database, tmp_path) as stack,
        IsolatedRunner([f"{misbehaving_agents.__file__}:well"]) as own,
    ):
        handle = await stack.start("patient", FILE)
        queue = names.runner_queue(names.RUNNER_QUEUE, "well")

        async def waits_for_a_runner() -> bool:
            return bool(await database.pool.fetchval("select waiting_for from runs where run = 'patient'"))

        await eventually(waits_for_a_runner)
        store = await PostgresStore.create(database, "http://gateway")
        activities = RunnerActivities(store, own, Present(NOWHERE), "well", "worker")
        beside = [ActivityInterceptor(2.0, Doing())]
        async with Worker(temporal, task_queue=queue, activities=[activities.run_attempt], interceptors=beside):
            await handle.execute_update("pause", {})

            async def let_in() -> bool:
                progress = await handle.query("progress")
                return progress["phase"] == "paused"

            await eventually(let_in)
            await asyncio.sleep(2)  # longer than its rollouts may take
            await handle.execute_update("resume", {})
            await handle.result()
        limits = await scheduled(temporal.get_workflow_handle("rollout/patient-s0001-g00-i0"))
    rows = await database.pool.fetch("select status, attempts from rollouts where run = 'patient'")
    assert {tuple(row) for row in rows} == {("succeeded", 1)}
    assert limits == [timedelta(days=30)]
