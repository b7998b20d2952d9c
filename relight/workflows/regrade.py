"""RegradeWorkflow: another grader judges the attempts of a run, page by page; nothing that was trained changes."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from relight.types import names
from relight.types.payloads import GradeInput, Judgements, RegradeInput, RegradePage, RegradeResult, RolloutResult
from relight.workflows import builds
from relight.workflows.calls import runner_call, store_call

PAGES_A_HISTORY = 20


@workflow.defn(
    name=names.REGRADE_WORKFLOW,
    failure_exception_types=[ActivityError],
    versioning_behavior=builds.FOLLOWS,
)
class RegradeWorkflow:
    """One grader's pass over one run."""

    @workflow.init
    def __init__(self, asked: RegradeInput) -> None:
        self.asked = asked.model_copy()

    @workflow.run
    async def run(self, asked: RegradeInput) -> RegradeResult:
        """Judge what this grader has not judged yet; what it fails on stays without its reward."""
        if not self.asked.begun:
            await store_call(names.BEGIN_REGRADE, asked, RegradePage, f"regrade by {asked.actor}")
            self.asked.begun = True
        pages = 0
        while (page := await store_call(names.LIST_UNGRADED, self.asked, RegradePage)).attempts:
            await self._judge(page)
            pages += 1
            if pages == PAGES_A_HISTORY:
                workflow.continue_as_new(self.asked)
        return self.progress()

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> RegradeResult:
        """How many were judged so far."""
        asked = self.asked
        return RegradeResult(run=asked.run, grader=asked.grader, graded=asked.graded, failed=asked.failed)

    async def _judge(self, page: RegradePage) -> None:
        found = await asyncio.gather(*(self._ask(rollout_id, attempt_id) for rollout_id, attempt_id in page.attempts))
        rewards = [(r.rollout_id, r.attempt_id or "", r.reward) for r in found if r.succeeded and r.reward is not None]
        judged = Judgements(run=self.asked.run, grader=self.asked.grader, rewards=rewards)
        await store_call(names.RECORD_JUDGEMENTS, judged, RegradePage)
        self.asked.graded += len(rewards)
        self.asked.failed += len(found) - len(rewards)
        self.asked.after = page.attempts[-1][0]
        workflow.set_current_details(f"{self.asked.graded} graded, {self.asked.failed} could not be graded")

    async def _ask(self, rollout_id: str, attempt_id: str) -> RolloutResult:
        asked = self.asked
        grade = GradeInput(rollout_id=rollout_id, attempt_id=attempt_id, fence=0, grader=asked.grader, run=asked.run)
        queue = names.runner_queue(asked.runner_queue, asked.grader)
        return await runner_call(names.JUDGE_ATTEMPT, grade, RolloutResult, queue, asked.run)
