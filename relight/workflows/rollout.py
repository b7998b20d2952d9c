"""RolloutWorkflow: the tries at one rollout.

The store writes statuses and rewards when an attempt opens and finishes. This workflow decides whether to try again,
and, if the run has a grader, lets it finish the attempts whose agent succeeded. A failure of the agent is a result,
never an exception.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from relight.temporal import search_attributes as search
from relight.types import names
from relight.types.payloads import AttemptInput, CloseRolloutInput, GradeInput, RolloutInput, RolloutResult
from relight.types.rollout import FailureClass, backoff_seconds, may_retry
from relight.workflows import build_versions
from relight.workflows.activity_calls import cause_of, is_cancel_requested, runner_call, store_call
from relight.workflows.input import validated_input


@workflow.defn(name=names.ROLLOUT_WORKFLOW, versioning_behavior=build_versions.PINNED)
class RolloutWorkflow:
    """One rollout, from its first try to its last."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self.rollout = validated_input(RolloutInput, inputs)
        self.cancel_reason: str | None = None
        self.actor = "temporal"
        self.trying: asyncio.Task[RolloutResult] | None = None

    @workflow.run
    async def run(self, *inputs: Any) -> RolloutResult:
        """Try until it ends."""
        self.trying = asyncio.create_task(self._try_until_it_ends())
        if self.cancel_reason is not None:  # the signal was there before the workflow began
            self.trying.cancel()
        try:
            result = await self.trying
        except (asyncio.CancelledError, ActivityError) as error:
            result = await self._result_after(error)
            if is_cancelled_exception(error) and self.cancel_reason is None:
                self._show(result)
                raise
        self._show(result)
        return result

    @workflow.signal(name=names.CANCEL)
    def cancel(self, value: Any = None) -> None:
        """Stop the attempt under way and close the rollout as cancelled; takes a reason, or `reason` and `actor`."""
        options: dict[str, Any] = value if isinstance(value, dict) else {"reason": value}
        self.actor = str(options.get("actor") or self.actor)
        self.cancel_reason = str(options.get("reason") or "cancelled by signal")
        if self.trying:
            self.trying.cancel()

    async def _try_until_it_ends(self) -> RolloutResult:
        number, config = self.rollout.first_try, self.rollout.config
        while True:
            result = await self._attempt(number)
            failure = None if result.succeeded or result.gone else result.failure_class
            if failure is None or not may_retry(config, failure, number):
                return result.model_copy(update={"try_number": number})
            self._show(result)
            self._raise_if_cancelled()
            await workflow.sleep(timedelta(seconds=backoff_seconds(config, number)))
            number += 1

    async def _attempt(self, number: int) -> RolloutResult:
        rollout = self.rollout
        attempt = AttemptInput.taken_from(rollout, try_number=number)
        result = await runner_call(names.RUN_ATTEMPT, attempt, RolloutResult, rollout.queue, rollout.run)
        if result.grade is None:
            return result
        self._raise_if_cancelled()
        return await self._grade(result.grade)

    def _raise_if_cancelled(self) -> None:
        """An attempt may end before the cancel reaches it; the rollout is cancelled nevertheless."""
        if is_cancel_requested() or self.cancel_reason is not None:
            raise asyncio.CancelledError

    async def _grade(self, grade: GradeInput) -> RolloutResult:
        """Let the grader finish an attempt whose agent succeeded."""
        queue = self.rollout.grader_queue or names.runner_queue(names.RUNNER_QUEUE, grade.grader)
        return await runner_call(names.GRADE_ATTEMPT, grade, RolloutResult, queue, self.rollout.run)

    async def _result_after(self, error: BaseException) -> RolloutResult:
        if is_cancelled_exception(error):
            return await asyncio.shield(self._close_rollout(self.cancel_reason or names.CANCELLED_WORKFLOW))
        return RolloutResult(rollout_id=self.rollout.rollout_id, message=": ".join(cause_of(error)))

    async def _close_rollout(self, reason: str) -> RolloutResult:
        close = CloseRolloutInput.taken_from(self.rollout, message=reason, actor=self.actor)
        return await store_call(names.CLOSE_ROLLOUT, close, RolloutResult)

    def _show(self, result: RolloutResult) -> None:
        if result.succeeded:
            return
        reason = result.failure_class or FailureClass.INFRASTRUCTURE
        workflow.set_current_details(f"**{reason.value}** (try {result.try_number}): {result.message}")
        workflow.upsert_search_attributes([search.STATUS.value_set(reason.value)])
