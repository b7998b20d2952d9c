"""New code while a run is live, on the real server: the version is switched and switched back in mid-step."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from relight.stack import temporal_server
from relight.store.database import Database
from relight.types import names
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.integration.operations.builds import HERE, changed_copy, orchestrator
from tests.integration.operators.kit import Gate
from tests.integration.operators.test_temporal_commands import TemporalCommand
from tests.support.orchestration import cluster, eventually, run_file, write_tasks

QUEUE = "relight-builds"
PATIENCE_SECONDS = 120


class StepGate:
    """A gate for each step."""

    def __init__(self, steps: int) -> None:
        self.gates = {step: Gate(lambda attempt: True) for step in range(1, steps + 1)}

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        return await self.gates[attempt.step or 0](attempt)

    async def full(self, step: int, number: int = 8) -> None:
        gate = self.gates[step]
        await gate.until(lambda: len(gate.held) == number, PATIENCE_SECONDS)


async def make_current(temporal: TemporalCommand, build: str, deployment: str = "relight") -> None:
    """As docs/deployments.md says; the version is known once one of its workers has polled."""
    options = ("--deployment-name", deployment, "--build-id", build)

    async def switched() -> bool:
        try:
            await temporal("worker", "deployment", "set-current-version", *options, "--yes")
        except AssertionError:
            return False
        return True

    await eventually(switched, PATIENCE_SECONDS)


async def timers(client: Client, workflow_id: str) -> int:
    handle = client.get_workflow_handle(workflow_id)
    events = [event async for event in handle.fetch_history_events()]
    return sum(event.HasField("timer_started_event_attributes") for event in events)


async def builds_of_run(client: Client, run: str) -> list[str]:
    """The builds that did the run's workflow tasks, in order, over all its executions."""
    handle: Any = client.get_workflow_handle(names.train_id(run))
    executions = [x async for x in client.list_workflows(f"WorkflowId = '{names.train_id(run)}'")]
    found: list[str] = []
    for execution in sorted(executions, key=lambda x: x.start_time):
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        async for event in handle.fetch_history_events():
            done = event.workflow_task_completed_event_attributes
            if build := done.deployment_version.build_id:
                found += [build] if found[-1:] != [build] else []
    return found


async def by_step(client: Client, database: Database, run: str) -> dict[int, set[int]]:
    """How many timers the rollouts of each step have."""
    found: dict[int, set[int]] = {}
    for row in await database.pool.fetch("select rollout_id, step from rollouts where run = $1", run):
        number = await timers(client, names.rollout_workflow_id(row["rollout_id"]))
        found.setdefault(row["step"], set()).add(number)
    return found


def commands_of_the_page() -> list[list[str]]:
    """What docs/deployments.md tells operators to type, with the builds of this test."""
    text = (HERE / "docs" / "deployments.md").read_text().replace("\\\n", " ")
    text = text.replace("2026-11-21", "2").replace("2026-11-14", "1")
    found = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("temporal ")]
    assert len(found) == 6
    return [words for words in found if words[:2] != ["workflow", "reset"]]


@pytest.fixture
async def command(temporal_address: str, tmp_path: Path) -> TemporalCommand:
    return TemporalCommand((await temporal_server.obtain(tmp_path)).path, temporal_address)


@pytest.fixture
def environment(database_url: str, temporal_address: str, tmp_path: Path) -> dict[str, str]:
    return {
        "RELIGHT_POSTGRES_URL": database_url,
        "TEMPORAL_ADDRESS": temporal_address,
        "RELIGHT_HOME": str(tmp_path / "home"),
        "RELIGHT_DATA_ROOT": str(tmp_path),
        "RELIGHT_ORCHESTRATOR_QUEUE": QUEUE,
    }


async def test_a_run_goes_through_a_new_build_and_back_and_its_rollouts_end_where_they_began(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand, environment: dict[str, str]
) -> None:
    write_tasks(tmp_path)
    agent = StepGate(3)
    changed, log = changed_copy(tmp_path / "changed"), tmp_path / "orchestrators.log"
    async with (
        cluster(temporal, database, tmp_path, agent) as stack,
        orchestrator(HERE, "1", log, environment),
        orchestrator(changed, "2", log, environment),
    ):
        await make_current(command, "1")
        file = run_file(steps=3, data={"train": "train.jsonl"})
        handle = await temporal.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id("rolled"), task_queue=QUEUE
        )
        await agent.full(1)
        await make_current(command, "2")
        agent.gates[1].open.set()
        await agent.full(2)
        await make_current(command, "1")
        agent.gates[2].open.set()
        await agent.full(3)
        agent.gates[3].open.set()
        await handle.result()
        assert await by_step(temporal, database, "rolled") == {1: {0}, 2: {1}, 3: {0}}
        assert await builds_of_run(temporal, "rolled") == ["1", "2", "1"]
        for documented in commands_of_the_page():
            await command(*documented)
    assert set(stack.runner.ran.values()) == {1}
    assert stack.gpu.updates == Counter({1: 1, 2: 1, 3: 1})
    assert await database.pool.fetchval("select count(*) from step_rollouts where run = 'rolled'") == 24
    assert await database.pool.fetchval("select count(*) from attempts") == 24


async def test_a_run_that_began_without_versions_continues_under_the_first_build(
    temporal: Client, database: Database, tmp_path: Path, command: TemporalCommand, environment: dict[str, str]
) -> None:
    write_tasks(tmp_path)
    agent = StepGate(2)
    queue = f"{QUEUE}-first"
    environment["RELIGHT_ORCHESTRATOR_QUEUE"] = queue
    environment["RELIGHT_DEPLOYMENT"] = "first"
    log = tmp_path / "orchestrators.log"
    async with cluster(temporal, database, tmp_path, agent) as stack:
        async with orchestrator(HERE, "", log, environment):
            file = run_file(steps=2, data={"train": "train.jsonl"})
            handle = await temporal.start_workflow(
                names.TRAINING_WORKFLOW, file, id=names.train_id("moved"), task_queue=queue
            )
            await agent.full(1)
        async with orchestrator(HERE, "1", log, environment):
            await make_current(command, "1", "first")
            for gate in agent.gates.values():
                gate.open.set()
            await handle.result()
            assert await builds_of_run(temporal, "moved") == ["1"]
    assert set(stack.runner.ran.values()) == {1}
