"""The scenario of operators for `tests.support.histories`: commands, a reset, a lost batch, a replay, a regrade."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from relight.operators.operator import Operator
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.types import commands, names
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import Cluster, always_right, cluster, eventually, run_file, served_grader, write_tasks

RUN = "operated"
HELD = (f"{RUN}-s0001-g00-i0", f"{RUN}-s0001-g00-i1")
FAILING = f"{RUN}-s0001-g01-i0"


class HeldAgent:
    """Holds two rollouts until told; fails one."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.holding = asyncio.Semaphore(0)

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        if attempt.sequence_id == 1 and attempt.rollout_id == FAILING:
            return FinishRequest(
                attempt_id=attempt.attempt_id, fence=attempt.fence, failure_class=FailureClass.AGENT_ERROR
            )
        if attempt.rollout_id in HELD:
            self.holding.release()
            await self.go_on.wait()
        return await always_right(attempt)


async def judge(call: AgentCall) -> AgentOutcome:
    """Gives everyone the same."""
    return AgentOutcome(kind="returned", rewards={"primary": 0.5})


async def play(client: Client, database: Database, folder: Path) -> dict[str, tuple[str, str | None]]:
    """Play it; the workflows whose histories are worth keeping, by the name of their file."""
    write_tasks(folder, count=4)
    agent = HeldAgent()
    async with cluster(client, database, folder, agent) as stack, served_grader(client, database, judge):
        stack.gpu.fail = lambda step: ApplicationError("no key", type="ConfigError", non_retryable=True)
        handle = await stack.start(RUN, run_file(steps=2, data="train.jsonl"))
        await _command(stack, database, agent, handle)
        failed = await handle.describe()
        batch = await client.get_workflow_handle(names.batch_id(RUN, 1, 0)).describe()
        stack.gpu.fail = lambda step: None
        await _reset(client, names.train_id(RUN))
        await client.get_workflow_handle(names.train_id(RUN)).result()
        operator = Operator(client, RunViews(database), names.ORCHESTRATOR_QUEUE)
        await operator.start_derived(RUN, commands.Replay(name="replayed"))
        await client.get_workflow_handle(names.train_id("replayed")).result()
        await operator.regrade(RUN, commands.Regrade(grader="judge"))
        await client.get_workflow_handle(names.regrade_id(RUN, "judge")).result()
        terminated = await _terminated_batch(stack)
    return {
        "operators-training": (names.train_id(RUN), failed.run_id),
        "operators-training-reset": (names.train_id(RUN), None),
        "operators-training-terminated": (terminated, None),
        "operators-replay": (names.train_id("replayed"), None),
        "operators-batch": (batch.id, batch.run_id),
        "operators-rollout-cancelled": (names.rollout_workflow_id(HELD[0]), None),
        "operators-regrade": (names.regrade_id(RUN, "judge"), None),
    }


async def _command(stack: Cluster, database: Database, agent: HeldAgent, handle: Any) -> None:
    for _ in HELD:
        await agent.holding.acquire()

    async def failed() -> bool:
        text = "select status from rollouts where rollout_id = $1"
        return await database.pool.fetchval(text, FAILING) == "failed"

    await eventually(failed)
    await handle.execute_update("retry_failed", {})
    await handle.execute_update("cancel_rollout", {"rollout_id": HELD[0], "reason": "for the history"})
    await handle.execute_update("set_concurrency", {"concurrency": 1})
    agent.go_on.set()

    async def ended() -> bool:
        return (await handle.describe()).close_time is not None

    await eventually(ended)


async def _terminated_batch(stack: Cluster) -> str:
    """A run whose batch is terminated."""
    held, go_on = asyncio.Event(), asyncio.Event()
    agent = stack.runner.agent

    async def slow(attempt: OpenedAttempt) -> FinishRequest:
        held.set()
        await go_on.wait()
        return await always_right(attempt)

    stack.runner.agent = slow
    handle = await stack.start("terminated", run_file(steps=1, data="train.jsonl"))
    await held.wait()
    await stack.client.get_workflow_handle(names.batch_id("terminated", 1, 0)).terminate("for the history")
    go_on.set()
    await handle.result()
    stack.runner.agent = agent
    return names.train_id("terminated")


async def _reset(client: Client, workflow_id: str) -> None:
    """To where the open step's plan was asked for."""
    task = 0
    async for event in client.get_workflow_handle(workflow_id).fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == names.PLAN_STEP:
            task = scheduled.workflow_task_completed_event_id
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            reason="for the history",
            workflow_task_finish_event_id=task,
            request_id="reset-1",
        )
    )
