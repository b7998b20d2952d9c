"""Supervises one attempt, from opening to finishing; the agent runs in isolation.

The store decides whether the attempt runs and what its end means for the rollout. The runner checks the deadlines of
rollouts that a workflow dispatches. A failure of the agent is data; an exception here is a failure of the platform,
after which Temporal retries the activity.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from relight.errors import ConflictError, RelightError, StoreError
from relight.faults import FaultPoint, fault_point
from relight.retrying import Every, in_background
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.deadlines import Deadlines, GrowingTotal
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.gateway_relay import CallLog
from relight.runner.process_isolation import AgentRunner
from relight.store.attempts.base import AttemptStore
from relight.types.rollout import FailureClass
from relight.types.wire import AttemptOutcome, FinishRequest, GradingRequest, OpenedAttempt, SpanRecord

SOONEST_CHECK_SECONDS = 0.05
MESSAGE_LENGTH = 1000
FENCED_OFF = "a newer attempt took over"
CHANGED_BY_LOST_CALLS = frozenset(
    {None, FailureClass.AGENT_ERROR, FailureClass.INVALID_REWARD, FailureClass.NO_REWARD}
) | {
    FailureClass.TIMEOUT,
    FailureClass.UNRESPONSIVE,
}
"""Ends that count as the agent's, unless one of its model calls was lost."""


class SpanBuffer:
    """Buffers spans: sends them to the store while the agent runs, and the rest when the attempt is finished."""

    flush_seconds = 0.5
    """How long a span may wait in the runner before it is sent to the store."""

    def __init__(self, store: AttemptStore, opened: OpenedAttempt) -> None:
        self.store = store
        self.opened = opened
        self.waiting: list[SpanRecord] = []
        self._sending = asyncio.Lock()
        self.last_at = time.monotonic()

    def add(self, span: SpanRecord) -> None:
        """Add a span, which counts as a sign of life."""
        self.waiting.append(span)
        self.last_at = time.monotonic()

    async def send_while_running(self) -> None:
        """Send spans until cancelled. A span that is being sent at that moment may be sent again; it is stored once."""
        async for _ in Every(self.flush_seconds, at_once=False):
            try:
                await self.flush()
            except ConflictError:
                return  # the attempt is fenced off, which its heartbeat notices
            except StoreError:
                continue  # it does not answer: they are sent again with the next ones

    async def flush(self) -> None:
        """Store what waits.

        Raises:
            RelightError: the store does not answer, or refuses it.
        """
        async with self._sending:
            if batch := self.waiting[:]:
                await self.store.add_spans(self.opened.rollout_id, self.opened.attempt_id, self.opened.fence, batch)
                del self.waiting[: len(batch)]


class AttemptWatch:
    """Runs one opened attempt, and ends it when it is overdue or superseded."""

    heartbeat_seconds = 10.0
    """Between two heartbeats to the store."""

    def __init__(
        self, store: AttemptStore, agents: AgentRunner, gateway: GatewayProbe, opened: OpenedAttempt, worker_id: str
    ) -> None:
        self.store = store
        self.agents = agents
        self.gateway = gateway
        self.opened = opened
        self.worker_id = worker_id
        self.spans = SpanBuffer(store, opened)
        self.begun = False
        """False while it waits to be started."""
        self.waited = GrowingTotal()
        """The gateway's count of platform time, which is 0 again after a restart."""

    async def run(self, call: AgentCall) -> AttemptOutcome | None:
        """Run the agent and record its end; None if a grader has to finish the attempt.

        Raises:
            ConflictError: a newer attempt exists, whose result counts.
        """
        watchers = in_background(self._watch(), self._beat(), self.spans.send_while_running())
        async with watchers, self.gateway.relay.followed(self.opened) as calls:
            own_call, spans = call.by_way_of(calls.base_url), self.spans
            outcome = await self.agents.call(own_call, on_span=spans.add, flush=spans.flush)
            failure, message = await with_outcome_checked(outcome, calls)
        fault_point(FaultPoint.AGENT_ENDED)
        if self.opened.grader and outcome.kind == "returned" and failure is not FailureClass.INFRASTRUCTURE:
            return await self._await_grading(outcome)
        given = {"reward": outcome.reward, "died": outcome.died_with, "spans": self.spans.waiting, "end": outcome}
        return await self.store.finish_attempt(self._finish(failure, message, **given))

    async def refuse(self, why: str) -> AttemptOutcome:
        """Close an attempt that this runner can't run as its run file asks."""
        return await self.store.finish_attempt(self._finish(FailureClass.INFRASTRUCTURE, why))

    async def never_began(self, reason: FailureClass, detail: str) -> None:
        """Close an attempt that was not started yet."""
        with suppress(RelightError):
            await self.store.finish_attempt(self._finish(reason, detail))

    async def kill(self, reason: FailureClass, detail: str) -> None:
        """End the attempt with everything that it started."""
        await self.agents.kill(self.opened.attempt_id, reason, detail)

    async def _watch(self) -> None:
        """Check the deadlines; before one is enforced, the gateway is asked for the platform's time."""
        deadlines = Deadlines.of(self.opened.config, time.monotonic())
        while (at := deadlines.next_at) is not None:
            await asyncio.sleep(max(at - time.monotonic(), SOONEST_CHECK_SECONDS))
            deadlines = await self._informed(deadlines)
            if due := deadlines.due(time.monotonic()):
                await self.kill(due, deadlines.describe(due))
                return

    async def _informed(self, deadlines: Deadlines) -> Deadlines:
        status = await self.gateway.status(self.opened)
        if status is None:
            # It is unknown how long the platform kept the agent waiting: check again instead of failing the agent.
            return deadlines.excluding(deadlines.excluded_seconds + 1.0)
        platform_seconds = self.waited.read(status.waited_seconds) + self.agents.held_seconds(self.opened.attempt_id)
        deadlines = deadlines.excluding(platform_seconds).progressed(self.spans.last_at)
        if status.last_activity_seconds_ago is not None:
            deadlines = deadlines.progressed(time.monotonic() - status.last_activity_seconds_ago)
        return deadlines

    async def _beat(self) -> None:
        opened = self.opened
        async for _ in Every(self.heartbeat_seconds, at_once=False):
            try:
                await self.store.heartbeat(opened.attempt_id, opened.fence, self.worker_id)
            except ConflictError:
                await self.kill(FailureClass.INFRASTRUCTURE, FENCED_OFF)
                return
            except RelightError:
                continue  # the store does not answer; a fence is noticed once it is back

    async def _await_grading(self, outcome: AgentOutcome) -> None:
        """Store everything but the reward, which the grader gives."""
        opened = self.opened
        if self.spans.waiting:
            await self.store.add_spans(opened.rollout_id, opened.attempt_id, opened.fence, self.spans.waiting)
        request = GradingRequest(attempt_id=opened.attempt_id, fence=opened.fence, end=outcome)
        await self.store.await_grading(request)

    def _finish(self, failure: FailureClass | None, message: str, **given: Any) -> FinishRequest:
        key = {"attempt_id": self.opened.attempt_id, "fence": self.opened.fence}
        return FinishRequest(**key, failure_class=failure, message=message[:MESSAGE_LENGTH], **given)


async def with_outcome_checked(outcome: AgentOutcome, calls: CallLog) -> tuple[FailureClass | None, str]:
    """The outcome with failure class and message (rule 3).

    If a model call was lost and never answered, the attempt is a failure of the platform, whatever the agent raised or
    returned: an agent that catches every error would return a reward for an answer that it never got. Otherwise the end
    counts, even if the gateway does not answer by then.
    """
    failure, message = outcome.failure_class, outcome.message
    if failure in CHANGED_BY_LOST_CALLS and (loss := await calls.lost_call()) is not None:
        ending = message or f"a reward of {outcome.reward}"
        return FailureClass.INFRASTRUCTURE, f"a model call {loss} on the gateway's side; the agent ended with: {ending}"
    return failure, message


async def end_quietly(watch: AttemptWatch, reason: FailureClass, detail: str) -> None:
    """Kill and close an attempt whose result no workflow waits for."""
    with suppress(RelightError):
        await watch.kill(reason, detail)
