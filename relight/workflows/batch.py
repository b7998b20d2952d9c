"""RolloutBatchWorkflow: runs whole groups of a step, at most about 200 rollouts.

It asks Postgres which rollouts are left to run, runs them, and asks again, until the batch is closed. So a batch that
is started again runs only what is not finished, and filling up short groups needs no code here.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import HandlerUnfinishedPolicy, ParentClosePolicy

from relight.temporal import search_attributes as search
from relight.types import names
from relight.types.payloads import BatchInput, BatchReport, NextRollouts, NextRolloutsInput, RolloutInput, RolloutResult
from relight.workflows import build_versions
from relight.workflows.activity_calls import store_call
from relight.workflows.input import validated_input
from relight.workflows.resizable_semaphore import ResizableSemaphore

MAX_CONCURRENCY = 200
"""Rollouts under way at once where the run sets no `concurrency`."""
HELD_CHECK_SECONDS = 60
"""How often a held batch checks whether it still is."""
EARLIER_CHILD_WAITS = (1, 2, 4, 8, 15, 30, 60)
"""Seconds between tries to start a rollout that an earlier batch still runs; after the last the batch gives it up.
There are few, because each of 200 rollouts may need them and each adds events to the history."""


@workflow.defn(
    name=names.BATCH_WORKFLOW,
    failure_exception_types=[ChildWorkflowError],
    versioning_behavior=build_versions.PINNED,
)
class RolloutBatchWorkflow:
    """The rollouts of some groups of a step."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self.batch = batch = validated_input(BatchInput, inputs)
        self.semaphore = ResizableSemaphore(min(batch.concurrency or MAX_CONCURRENCY, MAX_CONCURRENCY))
        self.done, self.failed = batch.ended, batch.failed
        self.under_way: set[tuple[int, int]] = set()
        self.tasks: dict[int, int] = {}
        """The task of each group, by position in the data set."""
        self.fresh = batch.fresh
        """Rollouts that were cancelled with an earlier execution of this batch may have to be opened again."""
        self.added: list[asyncio.Task[None]] = []
        """Rollouts that were added while others were under way."""
        self.signalled = False
        """A signal has come since the batch last asked Postgres."""
        self.held = batch.held

    @workflow.run
    async def run(self, *inputs: Any) -> BatchReport:
        """Run what is left until the batch is closed, then report to the run."""
        while not (report := (step := await self._next_rollouts()).report):
            self._show_held(step.held)
            if step.held:
                await self._wait_while_held()
            await asyncio.gather(*self._start(step))
            while self.added:
                added, self.added = self.added, []
                await asyncio.gather(*added)
        self._show_held(None)
        if self.batch.notify:
            run = workflow.get_external_workflow_handle(names.train_id(self.batch.run))
            await run.signal(names.BATCH_DONE, report)
        return report

    async def _wait_while_held(self) -> None:
        """Too many rollouts failed and the run is paused: wait until an operator retries them or resumes the run."""
        await self._continue_as_new_if_due()
        try:
            await workflow.wait_condition(
                lambda: self.signalled, timeout=timedelta(seconds=HELD_CHECK_SECONDS), timeout_summary="held"
            )
        except TimeoutError:
            return

    async def _continue_as_new_if_due(self) -> None:
        """Begin a new history if the server suggests it; only a held batch asks, when no rollout is under way."""
        if not workflow.info().is_continue_as_new_suggested():
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self.signalled or self.under_way or self.added:
            return
        now = {"fresh": False, "ended": self.done, "failed": self.failed, "held": self.held}
        workflow.continue_as_new(self.batch.model_copy(update={**now, "concurrency": self.semaphore.limit}))

    def _show_held(self, why: str | None) -> None:
        if why:
            workflow.set_current_details(f"**held**: {why}")
        if why != self.held:
            self.held = why
            workflow.upsert_search_attributes([search.waiting(why)])

    @workflow.signal(name=names.ADD_ROLLOUTS, unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    async def add_rollouts(self) -> None:
        """Run rollouts that an operator opened again, beside those under way."""
        self.signalled = True
        if self.under_way:  # otherwise the batch asks Postgres next in any case
            self.added += self._start(await self._next_rollouts())

    @workflow.signal(name=names.SET_CONCURRENCY)
    def set_concurrency(self, concurrency: int) -> None:
        """Change how many rollouts may run at once; those under way go on."""
        self.semaphore.resize(min(concurrency, MAX_CONCURRENCY))

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> BatchReport:
        """Rollouts that ended so far in this execution."""
        return BatchReport.taken_from(self.batch, succeeded=self.done - self.failed, failed=self.failed)

    async def _next_rollouts(self, *lost: tuple[int, int]) -> NextRollouts:
        question = NextRolloutsInput.taken_from(self.batch, lost=[*lost], fresh=self.fresh)
        self.signalled = self.fresh = False
        answer = await store_call(names.ADVANCE_BATCH, question, NextRollouts)
        self.tasks.update(answer.tasks)
        return answer

    def _start(self, step: NextRollouts) -> list[asyncio.Task[None]]:
        """Start the rollouts that are not under way yet."""
        rollouts = [planned for planned in step.rollouts if (planned[0], planned[1]) not in self.under_way]
        self.under_way.update((group, index) for group, index, _ in rollouts)
        return [asyncio.create_task(self._run_rollout(*planned)) for planned in rollouts]

    async def _run_rollout(self, group: int, index: int, first_try: int) -> None:
        """Run one rollout. If its workflow ended without a result, its row is closed at once."""
        async with self.semaphore:
            try:
                result = await self._run_child(group, index, first_try)
            except ChildWorkflowError as error:
                if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                    raise
                workflow.logger.warning("rollout %s/%s ended without a result: %s", group, index, error.cause)
                result = None
        left = await self._next_rollouts((group, index)) if result is None else NextRollouts()
        self.under_way.discard((group, index))
        self.added += self._start(left)
        self.done += 1
        self.failed += not (result and result.succeeded)
        self._show()

    async def _run_child(self, group: int, index: int, first_try: int) -> RolloutResult | None:
        batch = self.batch
        rollout_id = names.planned_rollout_id(batch.run, batch.step, group, index, batch.kind == "eval")
        queue = names.runner_queue(batch.runner_queue, batch.agent)
        rollout = RolloutInput.taken_from(batch, rollout_id=rollout_id, queue=queue, first_try=first_try)
        task = names.task_name(batch.kind, self.tasks.get(group))
        for seconds in EARLIER_CHILD_WAITS:
            try:
                return await workflow.execute_child_workflow(
                    names.ROLLOUT_WORKFLOW,
                    rollout,
                    id=names.rollout_workflow_id(rollout_id),
                    result_type=RolloutResult,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    search_attributes=search.of_rollout(batch.run, batch.step, task),
                    static_summary=f"group {group}, sample {index}",
                )
            except WorkflowAlreadyStartedError:
                self.fresh = True  # it belongs to an earlier batch and may be cancelled with that
                await workflow.sleep(seconds, summary="the rollout of an earlier batch is ending")
        return None

    def _show(self) -> None:
        workflow.set_current_details(f"{self.done} rollouts ended, {self.failed} of them failed")
