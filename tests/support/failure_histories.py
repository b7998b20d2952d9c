"""The scenario of failures for `tests.support.histories`: taken ids, lost children, failed updates, cancels."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from relight.store.database import Database
from relight.types import names
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import Cluster, always_right, cluster, eventually, run_file, write_tasks

RUN = "unlucky"
EVALUATION, EVALUATION_BATCH = names.evaluation_id(RUN, 0), names.evaluation_batch_id(RUN, 0, 0)
LAST_EVALUATION = names.evaluation_id(RUN, 2)
BATCH = names.batch_id(RUN, 1, 0)
CANCELLED, BACKING_OFF, FIRST_LOST, LAST_LOST, TAKEN = (
    names.planned_rollout_id(RUN, 1, *numbers, False) for numbers in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0))
)
EVALUATED = names.planned_rollout_id(RUN, 2, 0, 0, True)
STOPPED_RUN = "stopped"
STOPPED = names.planned_rollout_id(STOPPED_RUN, 1, 0, 0, False)
UNANSWERED = {names.planned_rollout_id(RUN, 0, 0, 0, True), CANCELLED, FIRST_LOST, LAST_LOST, EVALUATED, STOPPED}
RETRIES = {"max_attempts": 2, "retry_condition": ["timeout"], "backoff_seconds": 60}


class UnluckyAgent:
    """Gives no answer to the first attempt of some rollouts; lets that of another time out."""

    def __init__(self) -> None:
        self.begun = {rollout: asyncio.Event() for rollout in UNANSWERED}

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        begun = self.begun.get(attempt.rollout_id)
        if begun and not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        if attempt.rollout_id == BACKING_OFF:
            return FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, failure_class=FailureClass.TIMEOUT)
        return await always_right(attempt)


class FailingUpdates:
    """The first step's update fails in three ways; the second one loses its host, and fails three times in one way."""

    def __init__(self) -> None:
        different = [ApplicationError(f"out of memory in process {n}", type="TrainerError") for n in range(3)]
        lost = ApplicationError("serves another run", type="HostChangedError")
        self.failures = {
            1: iter(different),
            2: iter([lost, *[ApplicationError("not finite", type="TrainerError")] * 3]),
        }

    def __call__(self, step: int) -> Exception | None:
        return next(self.failures[step], None)


async def play(client: Client, database: Database, folder: Path) -> dict[str, tuple[str, str | None]]:
    """Play it; the workflows whose histories are worth keeping, by the name of their file."""
    write_tasks(folder, count=2)
    agent = UnluckyAgent()
    async with cluster(client, database, folder, agent) as stack:
        stack.gpu.fail = FailingUpdates()
        for workflow_id in (EVALUATION, EVALUATION_BATCH, BATCH, names.rollout_workflow_id(TAKEN)):
            await client.start_workflow("Earlier", id=workflow_id, task_queue="nobody-serves-it")
        handle = await stack.start(RUN, run_file(steps=2, rollout=RETRIES))
        await _lose_batch_of_evaluation(client, agent)
        evaluation = await client.get_workflow_handle(EVALUATION).describe()
        await _lose_rollouts(client, agent)
        batch = await client.get_workflow_handle(BATCH).describe()
        await _resume_after_failed_updates(stack)
        await agent.begun[EVALUATED].wait()
        cancelled = await client.get_workflow_handle(names.rollout_workflow_id(EVALUATED)).describe()
        await client.get_workflow_handle(LAST_EVALUATION).terminate("for the history")
        await handle.result()
        await _stop_run(stack, agent)
    return {
        "failures-training-cancelled": (names.train_id(STOPPED_RUN), None),
        "failures-training": (names.train_id(RUN), None),
        "failures-evaluation": (EVALUATION, evaluation.run_id),
        "failures-batch": (BATCH, batch.run_id),
        "failures-rollout-cancelled-in-attempt": (names.rollout_workflow_id(CANCELLED), None),
        "failures-rollout-cancelled-in-back-off": (names.rollout_workflow_id(BACKING_OFF), None),
        "failures-rollout-cancelled-with-evaluation": (cancelled.id, cancelled.run_id),
    }


async def _lose_batch_of_evaluation(client: Client, agent: UnluckyAgent) -> None:
    await _free_id(client, EVALUATION, names.train_id(RUN))
    await _free_id(client, EVALUATION_BATCH, EVALUATION)
    await agent.begun[names.planned_rollout_id(RUN, 0, 0, 0, True)].wait()
    await client.get_workflow_handle(EVALUATION_BATCH).terminate("for the history")


async def _lose_rollouts(client: Client, agent: UnluckyAgent) -> None:
    await _free_id(client, BATCH, names.train_id(RUN))
    await _free_id(client, names.rollout_workflow_id(TAKEN), BATCH)
    await _lose_rollout(client, agent, FIRST_LOST)
    await agent.begun[CANCELLED].wait()
    await _reach(client, names.rollout_workflow_id(BACKING_OFF), EventType.EVENT_TYPE_TIMER_STARTED)
    for rollout_id in (CANCELLED, BACKING_OFF):
        change = {"rollout_id": rollout_id, "reason": "for the history"}
        await client.get_workflow_handle(names.train_id(RUN)).execute_update("cancel_rollout", change)
    await client.get_workflow_handle(names.rollout_workflow_id(CANCELLED)).result()
    await _lose_rollout(client, agent, LAST_LOST)


async def _lose_rollout(client: Client, agent: UnluckyAgent, rollout_id: str) -> None:
    await agent.begun[rollout_id].wait()
    await client.get_workflow_handle(names.rollout_workflow_id(rollout_id)).terminate("for the history")


async def _resume_after_failed_updates(stack: Cluster) -> None:
    handle = stack.client.get_workflow_handle(names.train_id(RUN))

    async def is_paused() -> bool:
        return (await handle.query(names.PROGRESS))["paused"]

    await eventually(is_paused, seconds=60)
    await handle.execute_update("resume", {})


async def _stop_run(stack: Cluster, agent: UnluckyAgent) -> None:
    handle = await stack.start(STOPPED_RUN, run_file(steps=1, data="train.jsonl"))
    await agent.begun[STOPPED].wait()
    await handle.cancel()
    with suppress(WorkflowFailureError):
        await handle.result()


async def _free_id(client: Client, workflow_id: str, parent_id: str) -> None:
    """End what has the id of a child, once the parent has failed to start that."""
    await _reach(client, parent_id, EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED, of_child=workflow_id)
    await client.get_workflow_handle(workflow_id).terminate("for the history")


async def _reach(client: Client, workflow_id: str, kind: EventType.ValueType, of_child: str = "") -> None:
    """Wait until the history of a workflow has an event of this kind."""

    async def has_event() -> bool:
        events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
        failed = [event.start_child_workflow_execution_failed_event_attributes.workflow_id for event in events]
        return any(e.event_type == kind and child == of_child for e, child in zip(events, failed, strict=True))

    await eventually(has_event)
