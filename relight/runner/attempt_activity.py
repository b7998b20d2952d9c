"""The `run_attempt` activity: Temporal's side of an attempt."""

from __future__ import annotations

import asyncio
import logging

from temporalio import activity
from temporalio.exceptions import ApplicationError

from relight.faults import FaultPoint, fault_point
from relight.runner.agent_call import AgentCall
from relight.runner.attempt import AttemptWatch, end_quietly
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.process_isolation import AgentRunner
from relight.runner.shared_exclusive_lock import SharedExclusiveLock
from relight.store.attempts.base import AttemptStore
from relight.temporal.draining import is_ending
from relight.temporal.retry_later import retry_later
from relight.types import names
from relight.types.payloads import AttemptInput, GradeInput, RolloutResult
from relight.types.rollout import FailureClass
from relight.types.wire import AttemptOutcome, OpenAnswer, OpenedAttempt, OpenRequest

log = logging.getLogger(__name__)

SHARED = "isolation: shared: attempts of %s run in one process, and nothing separates them from each other"
RUN_ALONE_AFTER_DEATHS = 4
"""After so many deaths a rollout runs alone in a runner; after one more it is given up."""


def execution_key(info: activity.Info) -> str:
    """Identifies this execution of the activity. The attempt number alone is not unique, since a reset restarts it."""
    return f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}/{info.started_time.isoformat()}"


class RunnerActivities:
    """Runs attempts with the agents of this process."""

    def __init__(
        self,
        store: AttemptStore,
        agents: AgentRunner,
        gateway: GatewayProbe,
        agent: str,
        worker_id: str,
        always_alone: bool = False,
        lock: SharedExclusiveLock | None = None,
        lacking: str = "",
    ) -> None:
        """`lacking` is why agents of this process have no namespaces; empty if they have."""
        self.store = store
        self.agents = agents
        self.gateway = gateway
        self.agent = agent
        self.worker_id = worker_id
        self.always_alone = always_alone
        self.lock = lock or SharedExclusiveLock()
        self.lacking = lacking
        self._told_of_sharing = False

    @activity.defn(name=names.RUN_ATTEMPT)
    async def run_attempt(self, attempt: AttemptInput) -> RolloutResult:
        """Open, run and finish one attempt, or return why there is nothing to run."""
        answer = await self.store.open_attempt(
            OpenRequest(
                rollout_id=attempt.rollout_id,
                try_number=attempt.try_number,
                execution=execution_key(activity.info()),
                worker_id=self.worker_id,
            )
        )
        return await self._act_on(attempt, answer)

    async def _act_on(self, attempt: AttemptInput, answer: OpenAnswer) -> RolloutResult:
        if answer.state == "wait":
            raise retry_later(answer.reason, answer.retry_after_seconds)
        if answer.state == "gone":
            return RolloutResult(rollout_id=attempt.rollout_id, gone=True, message=answer.reason)
        if answer.outcome is not None:
            return result_of(answer.outcome)
        if answer.attempt is None:
            raise ApplicationError("the store opened an attempt and did not say which", type="StoreError")
        fault_point(FaultPoint.ATTEMPT_KNOWN)
        outcome = await self._run(answer.attempt)
        fault_point(FaultPoint.ATTEMPT_RECORDED)
        if outcome is None:
            grade = GradeInput.taken_from(answer.attempt, try_number=attempt.try_number)
            return RolloutResult.taken_from(grade, succeeded=True, grade=grade)
        if outcome.failure_class is FailureClass.INFRASTRUCTURE:
            raise ApplicationError(outcome.message, type="Infrastructure")
        return result_of(outcome)

    async def _run(self, opened: OpenedAttempt) -> AttemptOutcome | None:
        limit = opened.config.memory_limit_bytes
        own_process = opened.isolation != "shared" or opened.network != "internet" or limit is not None
        alone = self.always_alone or opened.alone or own_process
        if not alone and not self._told_of_sharing:
            self._told_of_sharing = True
            log.warning(SHARED, self.agent, extra={"action": "isolation_shared", "agent": self.agent})
        opened_so = opened.model_copy(update={"alone": alone})
        call = AgentCall.from_opened(opened_so, self.agent, memory_limit_bytes=limit)
        watch = AttemptWatch(self.store, self.agents, self.gateway, opened, self.worker_id)
        if opened.isolation == "sandbox" and self.lacking:
            return await watch.refuse(f"isolation: sandbox can't be had on runner {self.worker_id}: {self.lacking}")
        running = asyncio.create_task(self._in_turn(watch, call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._cancelled(watch, running)
            raise

    async def _in_turn(self, watch: AttemptWatch, call: AgentCall) -> AttemptOutcome | None:
        """Run it; a rollout with one death left runs alone."""
        async with self.lock.enter(alone=watch.opened.deaths >= RUN_ALONE_AFTER_DEATHS):
            watch.begun = True
            return await watch.run(call)

    async def _cancelled(self, watch: AttemptWatch, running: asyncio.Task[AttemptOutcome | None]) -> None:
        """Handle the cancel of the activity: the rollout was cancelled, this process stops, or Temporal gave the
        attempt up.
        """
        details = activity.cancellation_details()
        asked = details is not None and details.cancel_requested
        reason = FailureClass.CANCELLED if asked else FailureClass.INFRASTRUCTURE
        ending = "handed back by a runner that ends" if is_ending() else "its runner lost its connection to Temporal"
        why = "cancelled" if asked else ending
        if not watch.begun:
            running.cancel()
            await watch.never_began(reason, why)
        await end_quietly(watch, reason, why)
        # The outcome is recorded by then, so nothing is run twice or stays open.
        await asyncio.gather(running, return_exceptions=True)


def result_of(outcome: AttemptOutcome) -> RolloutResult:
    """The result for the workflow."""
    return RolloutResult.taken_from(outcome, message=outcome.message[:500])
