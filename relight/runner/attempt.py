"""One attempt from opening to finishing: the agent runs in isolation, this watches over it.

The store decides whether anything runs at all, and what an ending means; the runner judges the deadlines of rollouts
that a workflow dispatches. Whatever the agent does is data. What raises here is a failure of the platform, which the
activity's own retries take care of.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from relight.errors import ConflictError, RelightError, StoreError
from relight.faults import Place, reach
from relight.runner.calls import AgentCall, AgentOutcome
from relight.runner.deadlines import Deadlines, GrowingTotal
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.isolated import AgentRunner
from relight.store.interface import AttemptStore
from relight.types.rollout import FailureClass
from relight.types.wire import AttemptOutcome, FinishRequest, HandOver, OpenedAttempt, SpanRecord

SPAN_FLUSH_SECONDS = 0.5
"""How long a span may wait at the runner before it goes to the store."""
STORE_HEARTBEAT_SECONDS = 10.0
SOONEST_CHECK_SECONDS = 0.05
MESSAGE_LENGTH = 1000
FENCED_OFF = "a newer attempt took over"
BY_ITSELF = frozenset({None, FailureClass.AGENT_ERROR, FailureClass.INVALID_REWARD, FailureClass.NO_REWARD})
"""How an agent ends that nobody ended."""


class SpanBuffer:
    """Spans on their way to the store: sent while the agent runs, the rest with the finish."""

    def __init__(self, store: AttemptStore, opened: OpenedAttempt) -> None:
        self.store = store
        self.opened = opened
        self.waiting: list[SpanRecord] = []
        self.last_at = time.monotonic()

    def add(self, span: SpanRecord) -> None:
        """Take a span; it is a sign of life."""
        self.waiting.append(span)
        self.last_at = time.monotonic()

    async def send_while_running(self) -> None:
        """Until cancelled. A span that was on its way then may be sent twice, and is stored once."""
        while True:
            await asyncio.sleep(SPAN_FLUSH_SECONDS)
            if batch := self.waiting[:]:
                try:
                    await self.store.add_spans(self.opened.rollout_id, self.opened.attempt_id, self.opened.fence, batch)
                except StoreError:
                    continue  # it is away for longer than its client is patient: the next ones may find it again
                del self.waiting[: len(batch)]


class AttemptWatch:
    """Runs one opened attempt and ends it when it is overdue or fenced off."""

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
        """False while it waits for its turn."""
        self.waited = GrowingTotal()
        """The gateway's count of platform time, which a restart of it sets to 0."""

    async def run(self, call: AgentCall) -> AttemptOutcome | None:
        """Run the agent to its end and record how it ended; None where a grader is to say that.

        Raises:
            ConflictError: fenced off; a newer attempt's result counts.
        """
        watchers = [
            asyncio.create_task(work) for work in (self._watch(), self._beat(), self.spans.send_while_running())
        ]
        try:
            outcome = await self.agents.call(call, on_span=self.spans.add)
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
        reach(Place.AGENT_ENDED)
        failure, message = await self._judged(outcome)
        if self.opened.grader and outcome.kind == "returned" and failure is not FailureClass.INFRASTRUCTURE:
            return await self._hand_over(outcome)
        return await self.store.finish_attempt(self._finish(outcome, failure, message))

    async def never_began(self, reason: FailureClass, detail: str) -> None:
        """Close an attempt that was still waiting for its turn."""
        opened = self.opened
        with suppress(RelightError):
            await self.store.finish_attempt(
                FinishRequest(
                    attempt_id=opened.attempt_id,
                    fence=opened.fence,
                    failure_class=reason,
                    message=detail[:MESSAGE_LENGTH],
                )
            )

    async def kill(self, reason: FailureClass, detail: str) -> None:
        """End the attempt with everything that it started."""
        await self.agents.kill(self.opened.attempt_id, reason, detail)

    async def _watch(self) -> None:
        """Judge the deadlines; what the platform spent is asked for before one is acted on."""
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
            # Nobody can tell how long the platform kept the agent waiting: look again rather than blame the agent.
            return deadlines.excluding(deadlines.excluded_seconds + 1.0)
        platform_seconds = self.waited.read(status.waited_seconds) + self.agents.held_seconds(self.opened.attempt_id)
        deadlines = deadlines.excluding(platform_seconds).progressed(self.spans.last_at)
        if status.last_activity_seconds_ago is not None:
            deadlines = deadlines.progressed(time.monotonic() - status.last_activity_seconds_ago)
        return deadlines

    async def _beat(self) -> None:
        opened = self.opened
        while True:
            await asyncio.sleep(STORE_HEARTBEAT_SECONDS)
            try:
                await self.store.heartbeat(opened.attempt_id, opened.fence, self.worker_id)
            except ConflictError:
                await self.kill(FailureClass.INFRASTRUCTURE, FENCED_OFF)
                return
            except RelightError:
                continue  # the store is away; that we were fenced off is learnt once it is back

    async def _hand_over(self, outcome: AgentOutcome) -> None:
        """Keep everything but the reward, which is not the agent's to give."""
        opened = self.opened
        if self.spans.waiting:
            await self.store.add_spans(opened.rollout_id, opened.attempt_id, opened.fence, self.spans.waiting)
        await self.store.hand_over(
            HandOver(
                attempt_id=opened.attempt_id,
                fence=opened.fence,
                output=outcome.output,
                output_bytes=outcome.output_bytes,
                duration_seconds=outcome.duration_seconds,
            )
        )

    async def _judged(self, outcome: AgentOutcome) -> tuple[FailureClass | None, str]:
        """Failure class and message. What ends while the gateway is out of reach is the platform's failure, whatever
        the agent raised or returned: one that catches every error gives a reward for what it never saw (semantics 3).
        """
        failure, message = outcome.failure_class, outcome.message
        if failure in BY_ITSELF and not await self.gateway.reachable():
            ending = message or f"a reward of {outcome.reward}"
            return FailureClass.INFRASTRUCTURE, f"the gateway was out of reach when it ended with: {ending}"
        return failure, message

    def _finish(self, outcome: AgentOutcome, failure: FailureClass | None, message: str) -> FinishRequest:
        error = outcome.error
        return FinishRequest(
            attempt_id=self.opened.attempt_id,
            fence=self.opened.fence,
            failure_class=failure,
            reward=outcome.reward,
            message=message[:MESSAGE_LENGTH],
            error={"type": error.type, "message": error.message, "traceback": error.traceback} if error else None,
            output=outcome.output,
            output_bytes=outcome.output_bytes,
            duration_seconds=outcome.duration_seconds,
            spans=self.spans.waiting,
            died=outcome.died_with,
        )


async def end_quietly(watch: AttemptWatch, reason: FailureClass, detail: str) -> None:
    """End an attempt whose result nobody waits for any more."""
    with suppress(RelightError):
        await watch.kill(reason, detail)
