"""Saves the histories that replay tests read: `python -m tests.support.histories`.

A scripted run with a continue-as-new, a retry, a command, a filled-up group and both evaluations, on real servers.
Histories of released workflows stay: what is there already is not written again, so that today's code goes on being
tested against yesterday's. Save new ones under new names when a workflow gets new commands.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.store.database import Database
from relight.types import names
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support import failure_histories, operator_histories, run_health_histories
from tests.support.orchestration import always_right, cluster, run_file, served_grader, write_tasks
from tests.support.postgres import create_database, postgres_server
from tests.support.temporal import temporal_dev_server

FOLDER = Path(__file__).parents[1] / "histories"
RUN = "saved"
FAILING = {"s0001-g00-i0": "timeout", "s0002-g01-i0": "engine_error"}


async def agent(attempt: OpenedAttempt) -> FinishRequest:
    """Fails where the scenario wants a retry or a filled-up group."""
    failing = FAILING.get(attempt.rollout_id.removeprefix(f"{RUN}-"))
    if failing and attempt.sequence_id == 1:
        return FinishRequest(
            attempt_id=attempt.attempt_id,
            fence=attempt.fence,
            failure_class=FailureClass(failing),
            message="on purpose",
        )
    return await always_right(attempt)


async def grader(call: AgentCall) -> AgentOutcome:
    """Gives everyone the same."""
    return AgentOutcome(kind="returned", rewards={"primary": 0.5})


async def save(address: str, postgres_url: str, folder: Path) -> list[str]:
    """Play the scenario and write a file for each workflow that is worth keeping."""
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    database = await Database.connect(await create_database(postgres_url))
    write_tasks(folder, count=4)
    retries = {"max_attempts": 2, "retry_condition": ["timeout"], "backoff_seconds": 0.1}
    file = {**run_file(steps=3, rollout=retries), "history_limit": 60}
    async with cluster(client, database, folder, agent) as stack:
        handle = await stack.start(RUN, file)
        await handle.execute_update("set_hyperparameters", {"learning_rate": 1e-4})
        await handle.signal("pause", {"reason": "for the history"})
        await asyncio.sleep(1)
        await handle.signal("resume", {})
        await handle.result()
        saved = [*await _write(client), *await _write_graded(client, database)]
    for scenario in (operator_histories, run_health_histories, failure_histories):
        for name, (workflow_id, run_id) in (await scenario.play(client, database, folder)).items():
            saved += await _keep(client, name, workflow_id, run_id)
    await database.close()
    return saved


async def _keep(client: Client, name: str, workflow_id: str, run_id: str | None = None) -> list[str]:
    """Write a history that is not there yet; the names of what was written."""
    path = FOLDER / f"0.1-{name}.json"
    if path.exists():
        return []
    history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    path.write_text(
        history.to_json().replace(f"{Path(__file__).parents[2]}/", "")
    )  # stack traces name no machine's folder
    return [path.name]


async def _write(client: Client) -> list[str]:
    FOLDER.mkdir(exist_ok=True)
    saved: list[str] = []
    seen = [execution async for execution in client.list_workflows(f"RelightRun = '{RUN}'")]
    training = sorted((e for e in seen if e.workflow_type == "TrainingWorkflow"), key=lambda e: e.start_time)
    chosen = {f"training-{number}": execution for number, execution in enumerate(training)}
    for execution in seen:
        kind = execution.workflow_type.removesuffix("Workflow").lower()
        retried = execution.id.endswith("s0001-g00-i0")
        if kind == "rollout" and not retried:
            kind = "rollout-plain"
        if kind != "training":
            chosen.setdefault(f"{kind}-filled" if execution.id.endswith("step-2/batch-0") else kind, execution)
    for name, execution in chosen.items():
        saved += await _keep(client, name, execution.id, execution.run_id)
    return saved


async def _write_graded(client: Client, database: Database) -> list[str]:
    """A rollout whose reward a grader gives."""
    file = run_file(steps=1, grader="judge", data={"train": "train.jsonl"})
    async with served_grader(client, database, grader):
        graded = await client.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id("graded"), task_queue=names.ORCHESTRATOR_QUEUE
        )
        await graded.result()
    return await _keep(client, "rollout-graded", names.rollout_workflow_id("graded-s0001-g00-i0"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="relight-histories-") as name:
        folder = Path(name)
        with temporal_dev_server(folder) as address, postgres_server(folder) as postgres_url:
            print("\n".join(asyncio.run(save(address, postgres_url, folder))))


if __name__ == "__main__":
    main()
