"""EvaluationWorkflow: runs the held-out tasks with one policy version and records the scores."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from relight.temporal import search_attributes as search
from relight.types import names
from relight.types.concurrency_shares import share
from relight.types.payloads import (
    BatchInput,
    BatchReport,
    EvaluationInput,
    EvaluationResult,
    StepInput,
    StepPlan,
)
from relight.workflows import build_versions
from relight.workflows.activity_calls import may_restart_child, store_call
from relight.workflows.input import validated_input
from relight.workflows.waiting import CheckInterval, OpenChildren


@workflow.defn(
    name=names.EVALUATION_WORKFLOW,
    failure_exception_types=[ActivityError, ChildWorkflowError],
    versioning_behavior=build_versions.PINNED,
)
class EvaluationWorkflow(OpenChildren):
    """One evaluation."""

    @workflow.run
    async def run(self, *inputs: Any) -> EvaluationResult:
        """Plan, run, record."""
        evaluation = validated_input(EvaluationInput, inputs)
        request = StepInput(run=evaluation.run, epoch=evaluation.epoch, step=evaluation.version)
        plan = await store_call(names.PLAN_EVALUATION, request, StepPlan)
        workflow.set_current_details(f"{plan.rollouts} held-out rollouts with policy version {evaluation.version}")
        left = sorted({*range(plan.batches)} - {*evaluation.closed})
        await asyncio.gather(*(self._run_batch(evaluation, batch, plan.batches) for batch in left))
        return await store_call(names.RECORD_EVALUATION, request, EvaluationResult)

    async def _run_batch(self, evaluation: EvaluationInput, number: int, batches: int) -> None:
        concurrency = share(evaluation.concurrency, batches, number) if evaluation.concurrency else None
        own = {"step": evaluation.version, "kind": "eval", "batch": number, "concurrency": concurrency}
        batch = BatchInput.taken_from(evaluation, **own)
        interval, again = CheckInterval(), False
        while True:
            try:
                with self._child_open():
                    await workflow.execute_child_workflow(
                        names.BATCH_WORKFLOW,
                        batch,
                        id=names.evaluation_batch_id(evaluation.run, evaluation.version, number),
                        result_type=BatchReport,
                        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                        search_attributes=search.of_step(batch.run, batch.step),
                    )
                evaluation.closed.append(number)
                return
            except WorkflowAlreadyStartedError:
                again = True
            except ChildWorkflowError as error:
                if not may_restart_child(error):
                    raise
            if again:
                await self._wait(evaluation, interval)
            again = True

    async def _wait(self, evaluation: EvaluationInput, interval: CheckInterval) -> None:
        """Wait until the next try; continue as new instead if the history is long and every open batch waits here."""
        is_history_long = workflow.info().is_continue_as_new_suggested
        try:
            # Temporal evaluates this once no task can run: no task is about to start a batch, which would be cancelled.
            await workflow.wait_condition(
                lambda: is_history_long() and not self.open_children,
                timeout=timedelta(seconds=interval.seconds()),
                timeout_summary="an earlier batch is ending, or one ended early again",
            )
        except TimeoutError:
            return
        workflow.continue_as_new(evaluation)
