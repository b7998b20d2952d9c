"""EvaluationWorkflow: plays the held-out tasks with one policy version and records the mean reward."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ChildWorkflowError
from temporalio.workflow import ParentClosePolicy

from relight.types import names
from relight.types.payloads import (
    BatchInput,
    BatchReport,
    EvaluationInput,
    EvaluationResult,
    StepInput,
    StepPlan,
)
from relight.types.shares import share
from relight.workflows import builds, search
from relight.workflows.calls import store_call


@workflow.defn(
    name=names.EVALUATION_WORKFLOW,
    failure_exception_types=[ActivityError, ChildWorkflowError],
    versioning_behavior=builds.ENDS_WHERE_IT_BEGAN,
)
class EvaluationWorkflow:
    """One evaluation."""

    @workflow.run
    async def run(self, evaluation: EvaluationInput) -> EvaluationResult:
        """Plan, play, record."""
        place = StepInput(run=evaluation.run, epoch=evaluation.epoch, step=evaluation.version)
        plan = await store_call(names.PLAN_EVALUATION, place, StepPlan)
        workflow.set_current_details(f"{plan.rollouts} held-out rollouts with policy version {evaluation.version}")
        await asyncio.gather(*(self._play(evaluation, batch, plan.batches) for batch in range(plan.batches)))
        return await store_call(names.RECORD_EVALUATION, place, EvaluationResult)

    async def _play(self, evaluation: EvaluationInput, number: int, batches: int) -> BatchReport:
        batch = BatchInput(
            run=evaluation.run,
            epoch=evaluation.epoch,
            step=evaluation.version,
            kind="eval",
            batch=number,
            agent=evaluation.agent,
            runner_queue=evaluation.runner_queue,
            config=evaluation.config,
            concurrency=share(evaluation.concurrency, batches, number) if evaluation.concurrency else None,
            grader_queue=evaluation.grader_queue,
        )
        return await workflow.execute_child_workflow(
            names.BATCH_WORKFLOW,
            batch,
            id=names.evaluation_batch_id(evaluation.run, evaluation.version, number),
            result_type=BatchReport,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            search_attributes=search.of_step(batch.run, batch.step),
        )
