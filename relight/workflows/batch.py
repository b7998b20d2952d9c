"""RolloutBatchWorkflow: plays whole groups of a step, at most about 200 rollouts.

It asks Postgres what is left to run, runs it, and asks again, until the batch is closed. So a batch that is started
anew runs only what is not finished, and filling up short groups needs no code here.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import HandlerUnfinishedPolicy, ParentClosePolicy

from relight.types import names
from relight.types.payloads import Advance, AdvanceInput, BatchInput, BatchReport, RolloutInput, RolloutResult
from relight.workflows import builds, search
from relight.workflows.calls import store_call
from relight.workflows.slots import Slots

WINDOW = 200
"""Rollouts under way at once where the run sets no `concurrency`."""
HELD_CHECK_SECONDS = 60
"""How often a batch that is held looks whether it still is."""
OLD_CHILD_CHECKS = 60
"""How often a rollout that an older batch still runs is waited for, every 2 s."""


@workflow.defn(
    name=names.BATCH_WORKFLOW,
    failure_exception_types=[ChildWorkflowError],
    versioning_behavior=builds.ENDS_WHERE_IT_BEGAN,
)
class RolloutBatchWorkflow:
    """The rollouts of some groups of a step."""

    @workflow.init
    def __init__(self, batch: BatchInput) -> None:
        self.batch = batch
        self.slots = Slots(min(batch.concurrency or WINDOW, WINDOW))
        self.done = 0
        self.failed = 0
        self.under_way: set[tuple[int, int]] = set()
        self.fresh = True
        """What an older execution of this batch left may have to be opened again."""
        self.late: list[asyncio.Task[tuple[int, int] | None]] = []
        """Rollouts that were asked for while others were under way."""
        self.told = False
        """Somebody changed something since the batch last asked."""

    @workflow.run
    async def run(self, batch: BatchInput) -> BatchReport:
        """Play what is left until the batch is closed, then tell the run."""
        lost: list[tuple[int, int]] = []
        while not (report := (step := await self._advance(lost)).report):
            if step.held:
                await self._until_told(step.held)
            results = await asyncio.gather(*self._begin(step))
            while self.late:
                late, self.late = self.late, []
                results += await asyncio.gather(*late)
            lost = [place for place in results if place]
        if batch.notify:
            run = workflow.get_external_workflow_handle(names.train_id(batch.run))
            await run.signal(names.BATCH_DONE, report)
        return report

    async def _until_told(self, why: str) -> None:
        """Too much failed, and the run is paused: somebody tries again what failed, or lets it go on as it is."""
        workflow.set_current_details(f"**held**: {why}")
        try:
            await workflow.wait_condition(lambda: self.told, timeout=timedelta(seconds=HELD_CHECK_SECONDS))
        except TimeoutError:
            return

    @workflow.signal(name=names.LOOK_AGAIN, unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    async def look_again(self) -> None:
        """Somebody opened rollouts again: play them now, beside those under way."""
        self.told = True
        if self.under_way:  # else the batch is about to ask anyway
            self.late += self._begin(await self._advance([]))

    @workflow.signal(name=names.SET_CONCURRENCY)
    def set_concurrency(self, concurrency: int) -> None:
        """So many at once from now on; what is under way stays so."""
        self.slots.resize(min(concurrency, WINDOW))

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> BatchReport:
        """Rollouts that ended so far in this execution."""
        batch = self.batch
        return BatchReport(
            run=batch.run,
            step=batch.step,
            kind=batch.kind,
            batch=batch.batch,
            succeeded=self.done - self.failed,
            failed=self.failed,
        )

    async def _advance(self, lost: list[tuple[int, int]]) -> Advance:
        batch, self.told = self.batch, False
        question = AdvanceInput(
            run=batch.run,
            epoch=batch.epoch,
            step=batch.step,
            kind=batch.kind,
            batch=batch.batch,
            lost=lost,
            fresh=self.fresh,
        )
        self.fresh = False
        return await store_call(names.ADVANCE_BATCH, question, Advance)

    def _begin(self, step: Advance) -> list[asyncio.Task[tuple[int, int] | None]]:
        """Begin to play what is not under way yet."""
        places = [place for place in step.rollouts if (place[0], place[1]) not in self.under_way]
        self.under_way.update((group, index) for group, index, _ in places)
        return [asyncio.create_task(self._play(*place)) for place in places]

    async def _play(self, group: int, index: int, first_try: int) -> tuple[int, int] | None:
        """Run one rollout; its place where its workflow ended without a word."""
        async with self.slots:
            try:
                result = await self._child(group, index, first_try)
            except ChildWorkflowError as error:
                if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                    raise
                workflow.logger.warning("rollout %s/%s ended without a result: %s", group, index, error.cause)
                result = None
        self.under_way.discard((group, index))
        self.done += 1
        self.failed += not (result and result.succeeded)
        self._show()
        return (group, index) if result is None else None

    async def _child(self, group: int, index: int, first_try: int) -> RolloutResult | None:
        batch = self.batch
        rollout_id = names.planned_rollout_id(batch.run, batch.step, group, index, batch.kind == "eval")
        rollout = RolloutInput(
            rollout_id=rollout_id,
            queue=names.runner_queue(batch.runner_queue, batch.agent),
            run=batch.run,
            epoch=batch.epoch,
            step=batch.step,
            config=batch.config,
            first_try=first_try,
            grader_queue=batch.grader_queue,
        )
        for _ in range(OLD_CHILD_CHECKS):
            try:
                return await workflow.execute_child_workflow(
                    names.ROLLOUT_WORKFLOW,
                    rollout,
                    id=names.rollout_workflow_id(rollout_id),
                    result_type=RolloutResult,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    search_attributes=search.of_step(batch.run, batch.step),
                )
            except WorkflowAlreadyStartedError:
                self.fresh = True  # an older batch's, perhaps about to be cancelled with it
                await workflow.sleep(timedelta(seconds=2))
        return None

    def _show(self) -> None:
        workflow.set_current_details(f"{self.done} rollouts ended, {self.failed} of them failed")
