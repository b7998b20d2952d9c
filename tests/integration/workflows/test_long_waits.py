"""Waits that continue as new, on a real server; how long they may be is tested on a simulated clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client

from relight.activities.orchestrator import OrchestratorActivities
from relight.store.database import Database
from relight.types import names
from relight.types.payloads import Readiness, RunState
from relight.worker.orchestrator import activities_of, make_worker
from relight.workflows import TrainingWorkflow
from tests.support.orchestration import cluster, eventually, run_file, write_tasks
from tests.support.simulated import SimulatedServer, always

COMMANDS = 20
OFTEN = {"check_seconds": 0.2}


async def events_until_timer(client: Client, workflow_id: str, number: int) -> int | None:
    """Events of a history up to where its so many-th timer was started."""
    count = timers = 0
    async for event in client.get_workflow_handle(workflow_id).fetch_history_events():
        count += 1
        timers += event.HasField("timer_started_event_attributes")
        if timers == number:
            return count
    return None


async def test_the_simulated_server_counts_events_as_a_real_one_does(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    activities = activities_of(OrchestratorActivities(database, temporal, tmp_path))
    given = run_file(agent="unknown") | OFTEN
    async with make_worker(temporal, names.ORCHESTRATOR_QUEUE, activities):
        handle = await temporal.start_workflow(
            names.TRAINING_WORKFLOW, given, id="train/counted", task_queue=names.ORCHESTRATOR_QUEUE
        )

        async def checked_five_times() -> int | None:
            return await events_until_timer(temporal, "train/counted", 5)

        counted = await eventually(checked_five_times)
        await handle.terminate()
    lacking = Readiness(waiting_for="no runner serves agent 'unknown'")
    begun = RunState(epoch=1, next_step=0, total_steps=3)
    answers: dict[str, Any] = {names.BEGIN_RUN: always(begun), names.CHECK_RUNNERS: always(lacking)}
    server = SimulatedServer(TrainingWorkflow, "train/counted", given, answers)
    await server.play(timedelta(seconds=4.9 * OFTEN["check_seconds"]))
    await server.close()
    assert server.waited.count(names.CHECK_RUNNERS) == 5
    assert server.events == [counted]


async def test_a_run_that_continues_as_new_while_it_waits_loses_no_command_and_shows_what_it_waits_for(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    activities = activities_of(OrchestratorActivities(database, temporal, tmp_path))
    found = "ExecutionStatus = 'Running' and RelightWaiting is not null and RelightRun = 'patient'"
    async with make_worker(temporal, names.ORCHESTRATOR_QUEUE, activities):
        handle = await temporal.start_workflow(
            names.TRAINING_WORKFLOW,
            {**run_file(steps=1, runner_queue="late", data="train.jsonl"), "history_limit": 20, **OFTEN},
            id="train/patient",
            task_queue=names.ORCHESTRATOR_QUEUE,
        )
        first = await handle.describe()

        async def continued() -> bool:
            return (await temporal.get_workflow_handle("train/patient").describe()).run_id != first.run_id

        await eventually(continued)
        for number in range(1, COMMANDS + 1):
            value = {"concurrency": number}
            await handle.signal(names.SET_CONCURRENCY, value)
            await asyncio.gather(handle.execute_update(names.SET_CONCURRENCY, value), asyncio.sleep(0.05))

        async def all_are_done() -> bool:
            text = "select count(distinct request_key) from audit where run = 'patient' and action = 'set_concurrency'"
            return await database.pool.fetchval(text) == 2 * COMMANDS

        await eventually(all_are_done)

        async def shown() -> list[str]:
            return [str(run.typed_search_attributes) async for run in temporal.list_workflows(found)]

        assert "no runner serves agent 'echo'" in (await eventually(shown))[0]
    async with cluster(temporal, database, tmp_path, prefix="late"):
        result = await handle.result()
        executions = [run async for run in temporal.list_workflows("WorkflowId = 'train/patient'")]
        closed = await handle.describe()
    assert result["status"] == "finished"
    assert len(executions) > 3
    assert names.SEARCH_WAITING not in closed.search_attributes
    assert await database.pool.fetchval("select concurrency from runs where run = 'patient'") == COMMANDS
