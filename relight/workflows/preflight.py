"""The preflight: rollouts that run before the first step and belong to no step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ParentClosePolicy

from relight.temporal import search_attributes as search
from relight.types import names
from relight.types.payloads import PreflightState, RolloutInput, RolloutResult, RunRequest, TrainingInput
from relight.workflows.activity_calls import store_call
from relight.workflows.waiting import CheckInterval

TIMEOUT_SECONDS = 600
"""A rollout that takes longer is cancelled, and the run begins."""


async def run_preflight(request: RunRequest, training: TrainingInput, step: int, is_paused: Callable[[], bool]) -> None:
    """Run rollouts until the store needs no more; the activity fails if it finds what would fail every time."""
    pause = CheckInterval(training.check_seconds)
    while (state := await store_call(names.ADVANCE_PREFLIGHT, request, PreflightState, "preflight")).rollouts:
        tasks = [
            asyncio.create_task(_run_rollout(request, training, step, rollout_id, state.tasks.get(rollout_id), pause))
            for rollout_id in state.rollouts
        ]
        try:
            await _wait_until_ended(tasks, is_paused)
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_until_ended(tasks: list[asyncio.Task[None]], is_paused: Callable[[], bool]) -> None:
    while True:
        _, waiting = await workflow.wait(tasks, timeout=TIMEOUT_SECONDS)
        if not waiting or not is_paused():
            return


async def _run_rollout(
    request: RunRequest, training: TrainingInput, step: int, rollout_id: str, task: str | None, pause: CheckInterval
) -> None:
    rollout = RolloutInput.taken_from(
        request,
        rollout_id=rollout_id,
        queue=names.runner_queue(training.runner_queue, training.agent),
        step=step,
        config=training.rollout.model_copy(update={"max_attempts": 1}),
        grader_queue=training.grader_queue,
    )
    try:
        await workflow.execute_child_workflow(
            names.ROLLOUT_WORKFLOW,
            rollout,
            id=names.rollout_workflow_id(rollout_id),
            result_type=RolloutResult,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            search_attributes=search.of_rollout(request.run, step, task),
            static_summary=f"preflight, task {task}" if task else "preflight",
        )
    except WorkflowAlreadyStartedError:
        await workflow.sleep(pause.seconds(), summary="an earlier preflight is ending")
    except ChildWorkflowError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("%s ended without a result: %s", rollout_id, error.cause)
        await workflow.sleep(pause.seconds())
