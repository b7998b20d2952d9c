"""The batches of a step: started, watched until they have closed, and started again if they end early."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from relight.temporal import search_attributes as search
from relight.types import names
from relight.types.concurrency_shares import share
from relight.types.payloads import BatchAnswer, BatchInput, BatchQuery, BatchReport, CheckInput, Readiness, StepPlan
from relight.workflows.activity_calls import store_call
from relight.workflows.waiting import WaitingWorkflowBase


class StepBatches(WaitingWorkflowBase):
    """The part of TrainingWorkflow that runs the batches of a step."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.batches: dict[tuple[int, int], asyncio.Future[BatchReport]] = {}
        """Those that this execution started. The others were started before a continue-as-new."""

    async def _run_batches(self, plan: StepPlan) -> None:
        """Keep the batches of a step running until all are closed."""
        begun = {number for step, number in self.started if step == plan.step}
        again: set[int] = set()
        """Batches that ended early before. They wait before they start again, as the cause may last."""
        interval = self._check_interval()
        while missing := self._open_batches(plan):
            for number in sorted(missing - begun):
                if await self._start_batch(plan, number):
                    begun.add(number)
            seconds = self.input.check_seconds if begun >= missing else interval.seconds()
            ended = await self._wait_for_ended_batches(plan, seconds)
            begun -= ended
            if ended & again:
                await self.wait(lambda: not self._open_batches(plan), interval.seconds(), "a batch ended early again")
            again |= ended

    def _open_batches(self, plan: StepPlan) -> set[int]:
        """The batches of a step that have not closed."""
        return {number for number in range(plan.batches) if (plan.step, number) not in self.closed}

    async def _start_batch(self, plan: StepPlan, number: int) -> bool:
        batch = BatchInput(
            run=self.name,
            epoch=self.cursor.epoch,
            step=plan.step,
            batch=number,
            agent=self.input.agent,
            runner_queue=self.input.runner_queue,
            config=self.input.rollout,
            concurrency=share(self.concurrency, plan.batches, number) if self.concurrency else None,
            notify=True,
            grader_queue=self.input.grader_queue,
        )
        self.started.add((plan.step, number))
        try:
            self.batches[plan.step, number] = await workflow.start_child_workflow(
                names.BATCH_WORKFLOW,
                batch,
                id=names.batch_id(self.name, plan.step, number),
                result_type=BatchReport,
                parent_close_policy=ParentClosePolicy.ABANDON,
                search_attributes=search.of_step(self.name, plan.step),
                static_summary=f"step {plan.step}, batch {number}",
            )
            self.batches[plan.step, number].add_done_callback(_retrieve_exception)
        except WorkflowAlreadyStartedError:
            return False  # started by an earlier epoch or before a reset: it reports, or ends and is started again
        return True

    async def _wait_for_ended_batches(self, plan: StepPlan, seconds: float) -> set[int]:
        """Wait until all batches are closed, one ended without a report, or a check is due; those that ended."""
        await self.wait(
            lambda: not self._open_batches(plan) or bool(self._ended_without_report(plan)),
            seconds,
            f"batches of step {plan.step}",
        )
        if not self._open_batches(plan):
            return set()
        ended = self._ended_without_report(plan)
        for number in ended:
            del self.batches[plan.step, number]
        return ended | await self._check_batches(plan)

    def _ended_without_report(self, plan: StepPlan) -> set[int]:
        """Batches of this execution that ended without a report: they were terminated or cancelled, or they failed."""
        ended = {number for (step, number), batch in self.batches.items() if step == plan.step and batch.done()}
        return ended & self._open_batches(plan)

    async def _check_batches(self, plan: StepPlan) -> set[int]:
        """Check all open batches in one activity; the numbers of those that ended without closing."""
        answer = await self._query_batches(plan.step, self._open_batches(plan))
        for report in answer.reports:
            self.batch_done(report)
        self._show(self.phase, answer.waiting_for)
        return set(answer.ended)

    async def _query_batches(self, step: int, numbers: set[int], ending: bool = False) -> BatchAnswer:
        question = BatchQuery(**self._check_input().model_dump(), step=step, batches=sorted(numbers), ending=ending)
        return await store_call(names.BATCH_STATUS, question, BatchAnswer)

    def _check_input(self, with_gpu: bool = False) -> CheckInput:
        return CheckInput(
            run=self.name,
            epoch=self.cursor.epoch,
            agent=self.input.agent if self._needs_runners else "",
            runner_queue=self.input.runner_queue,
            gpu_queue=self.input.gpu_queue if with_gpu else None,
            phase="starting" if with_gpu else "sampling",
            grader=self.input.grader if self._needs_runners else None,
        )

    async def _check_runners(self, with_gpu: bool = False) -> Readiness:
        """Why the run has to wait, if it has to, and whether it is paused."""
        return await store_call(names.CHECK_RUNNERS, self._check_input(with_gpu), Readiness)

    @property
    def _needs_runners(self) -> bool:
        """Whether this run needs runners."""
        return not self.cursor.replays or self.input.data.evaluation is not None


def _retrieve_exception(batch: asyncio.Future[BatchReport]) -> None:
    """Retrieve a batch's exception, which asyncio would otherwise log. The batch's row says what counts."""
    if not batch.cancelled():
        batch.exception()
