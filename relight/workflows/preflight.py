"""The look before the first step: rollouts that belong to no step, played as all others are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ParentClosePolicy

from relight.types import names
from relight.types.payloads import PreflightState, RolloutInput, RolloutResult, RunRequest, TrainingInput
from relight.workflows import search
from relight.workflows.calls import store_call

PATIENCE_SECONDS = 600
"""A rollout that takes longer finds nothing out in time: it is cancelled, and the run begins."""


async def look_ahead(me: RunRequest, file: TrainingInput, step: int, is_paused: Callable[[], bool]) -> None:
    """Play until the store has seen enough; the activity fails where something would fail every time."""
    while rollouts := (await store_call(names.ADVANCE_PREFLIGHT, me, PreflightState, "preflight")).rollouts:
        playing = [asyncio.create_task(_play(me, file, step, rollout_id)) for rollout_id in rollouts]
        try:
            await _until_ended(playing, is_paused)
        finally:
            for one in playing:
                one.cancel()
            await asyncio.gather(*playing, return_exceptions=True)


async def _until_ended(playing: list[asyncio.Task[None]], is_paused: Callable[[], bool]) -> None:
    while True:
        _, waiting = await workflow.wait(playing, timeout=PATIENCE_SECONDS)
        if not waiting or not is_paused():
            return


async def _play(me: RunRequest, file: TrainingInput, step: int, rollout_id: str) -> None:
    rollout = RolloutInput(
        rollout_id=rollout_id,
        queue=names.runner_queue(file.runner_queue, file.agent),
        run=me.run,
        epoch=me.epoch,
        step=step,
        config=file.rollout.model_copy(update={"max_attempts": 1}),
        grader_queue=file.grader_queue,
    )
    try:
        await workflow.execute_child_workflow(
            names.ROLLOUT_WORKFLOW,
            rollout,
            id=names.rollout_workflow_id(rollout_id),
            result_type=RolloutResult,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            search_attributes=search.of_step(me.run, step),
            static_summary="preflight",
        )
    except WorkflowAlreadyStartedError:
        await workflow.sleep(timedelta(seconds=2), summary="an older preflight is ending")
    except ChildWorkflowError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("%s ended without a result: %s", rollout_id, error.cause)
        await workflow.sleep(timedelta(seconds=1))
