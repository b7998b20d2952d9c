"""RegradeWorkflow: another grader grades the attempts of a run, page by page; the trained rewards do not change."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from relight.types import names
from relight.types.payloads import GradeInput, RegradedRewards, RegradeInput, RegradePage, RegradeResult, RolloutResult
from relight.workflows import build_versions
from relight.workflows.activity_calls import runner_call, store_call
from relight.workflows.input import validated_input

PAGES_A_HISTORY = 20


@workflow.defn(
    name=names.REGRADE_WORKFLOW,
    failure_exception_types=[ActivityError],
    versioning_behavior=build_versions.AUTO_UPGRADE,
)
class RegradeWorkflow:
    """One grader's pass over one run."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self.request = validated_input(RegradeInput, inputs)

    @workflow.run
    async def run(self, *inputs: Any) -> RegradeResult:
        """Grade what this grader has not graded yet; attempts on which it fails get no reward from it."""
        if not self.request.begun:
            await store_call(names.BEGIN_REGRADE, self.request, RegradePage, f"regrade by {self.request.actor}")
            self.request.begun = True
        pages = 0
        while (page := await store_call(names.LIST_UNGRADED, self.request, RegradePage)).attempts:
            await self._grade_page(page)
            pages += 1
            if pages == PAGES_A_HISTORY:
                workflow.continue_as_new(self.request)
        return self.progress()

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> RegradeResult:
        """How many attempts were graded so far."""
        return RegradeResult.taken_from(self.request)

    async def _grade_page(self, page: RegradePage) -> None:
        found = await asyncio.gather(*(self._grade(*attempt) for attempt in page.attempts))
        rewards = [(r.rollout_id, r.attempt_id, r.reward) for r in found if r.succeeded and r.reward is not None]
        named = {r.attempt_id: r.named for r in found if r.named}
        graded = RegradedRewards(run=self.request.run, grader=self.request.grader, rewards=rewards, named=named)
        await store_call(names.RECORD_REGRADES, graded, RegradePage)
        self.request.graded += len(rewards)
        self.request.failed += len(found) - len(rewards)
        self.request.after = page.attempts[-1][0]
        workflow.set_current_details(f"{self.request.graded} graded, {self.request.failed} could not be graded")

    async def _grade(self, rollout_id: str, attempt_id: str) -> RolloutResult:
        run, grader = self.request.run, self.request.grader
        grade = GradeInput(rollout_id=rollout_id, attempt_id=attempt_id, fence=0, grader=grader, run=run)
        queue = names.runner_queue(self.request.runner_queue, grader)
        return await runner_call(names.REGRADE_ATTEMPT, grade, RolloutResult, queue, run)
