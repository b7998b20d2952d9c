"""The `grade_attempt` activity: a grader gets the output of an attempt, and its number is the attempt's reward.

A grader is a function that is served and isolated like an agent. Its failure never counts as the agent's: the attempt
then ends as `grader_error`. If its runner dies, Temporal retries the activity.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.attempt import MESSAGE_LENGTH
from relight.runner.attempt_activity import result_of
from relight.runner.process_isolation import AgentRunner
from relight.store.attempts.base import AttemptStore
from relight.types import names
from relight.types.payloads import GradeInput, NamedRewards, RolloutResult
from relight.types.rollout import FailureClass
from relight.types.wire import AgentEnd, AttemptOutcome, FinishRequest, Transcript

GRADER_SECONDS = 600.0
"""Longest that a grader may take."""
MAX_DIMENSIONS = 16
"""Of the rewards that a grader names in a regrade so many are kept, the primary one among them."""
MAX_TRIES = 10
"""After so many tries a grader whose runner died each time is given up."""


class GradingActivities:
    """Grades attempts with the graders of this process."""

    def __init__(self, store: AttemptStore, graders: AgentRunner, timeout_seconds: float = GRADER_SECONDS) -> None:
        self.store = store
        self.graders = graders
        self.timeout_seconds = timeout_seconds

    @activity.defn(name=names.GRADE_ATTEMPT)
    async def grade_attempt(self, grade: GradeInput) -> RolloutResult:
        """Grade one attempt and finish it."""
        if activity.info().attempt > MAX_TRIES:
            return result_of(await self.store.finish_attempt(_lost(grade)))
        return result_of(await self.grade(grade))

    @activity.defn(name=names.REGRADE_ATTEMPT)
    async def regrade_attempt(self, grade: GradeInput) -> RolloutResult:
        """Grade an attempt that has ended, and write nothing: `relight regrade` stores the reward separately."""
        if activity.info().attempt > MAX_TRIES:
            graded = _lost(grade)
        else:
            graded = await self._grade(grade, await self.store.transcript(grade.attempt_id))
        given = {"rollout_id": grade.rollout_id, "succeeded": graded.failure_class is None}
        return RolloutResult.taken_from(graded, **given, named=_named(graded.end))

    async def grade(self, grade: GradeInput) -> AttemptOutcome:
        """Call the grader and finish the attempt, unless it has ended already.

        Raises:
            ApplicationError: the platform lost the grader; Temporal retries.
            ConflictError: a newer attempt's result counts.
        """
        transcript = await self.store.transcript(grade.attempt_id)
        if transcript.outcome is not None:
            return transcript.outcome
        return await self.store.finish_attempt(await self._grade(grade, transcript))

    async def _grade(self, grade: GradeInput, transcript: Transcript) -> FinishRequest:
        call = AgentCall(
            call_id=f"{grade.attempt_id}/grade",
            agent=grade.grader,
            task=transcript.model_dump(include={"input", "calls", "output"}),
            alone=True,
        )
        try:
            async with asyncio.timeout(self.timeout_seconds):
                outcome = await self.graders.call(call)
        except TimeoutError:
            return _failed(grade, f"gave no reward within {self.timeout_seconds:g} s")
        if outcome.failure_class is FailureClass.INFRASTRUCTURE:
            raise ApplicationError(outcome.message, type="Infrastructure")
        if outcome.failure_class is not None:
            return _failed(grade, _reason(outcome), outcome)
        if outcome.reward is None:
            return _failed(grade, "returned no number", outcome)
        return _finish(grade, outcome, reward=outcome.reward)


def _named(end: AgentEnd) -> NamedRewards | None:
    """Named rewards and feedback for Temporal, cut to a readable size."""
    if not end.feedback and len(end.rewards) < 2:
        return None
    first = dict(list(end.rewards.items())[:MAX_DIMENSIONS])
    return NamedRewards(dimensions=first, feedback=end.feedback and end.feedback[:MESSAGE_LENGTH])


def _reason(outcome: AgentOutcome) -> str:
    """Why the grader gave no reward."""
    return outcome.message if outcome.error else outcome.message.replace("the agent", "the grader", 1)


def _finish(grade: GradeInput, end: AgentEnd, **found: Any) -> FinishRequest:
    return FinishRequest(attempt_id=grade.attempt_id, fence=grade.fence, grader=grade.grader, end=end, **found)


def _lost(grade: GradeInput) -> FinishRequest:
    return _failed(grade, f"its runner was lost {MAX_TRIES} times")


def _failed(grade: GradeInput, reason: str, end: AgentEnd | None = None) -> FinishRequest:
    message = f"grader {grade.grader!r}: {reason}"[:MESSAGE_LENGTH]
    return _finish(grade, end or AgentEnd(), failure_class=FailureClass.GRADER_ERROR, message=message)
