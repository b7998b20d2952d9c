"""TrainingWorkflow: one run, from its start to its end.

    begin -> wait for runners and a GPU host -> preflight and evaluate
          -> (plan -> batches -> update -> evaluate every k)* -> finish

Each of these is an activity that can run twice, and each decision is a row in Postgres before the workflow acts on it;
the state kept here only saves queries. Batches outlive a continue-as-new and report by signal; a lost signal costs a
minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ParentClosePolicy

from relight.errors import ConfigError
from relight.temporal import search_attributes as search
from relight.types import names, payloads
from relight.workflows import build_versions
from relight.workflows.activity_calls import (
    START_TIMEOUT,
    await_then_check_cancel,
    cause_of,
    gpu_call,
    is_cancel_requested,
    is_host_lost,
    may_restart_child,
    raise_if_cancelled,
    store_call,
)
from relight.workflows.preflight import run_preflight
from relight.workflows.step_batches import StepBatches

KEPT_REWARDS = 20
RELEASE_TIMEOUT = timedelta(minutes=2)
CANCEL_TIMEOUT = timedelta(seconds=30)
"""How long a cancelled run waits for its batches (rule 20)."""
CANCEL_POLL_SECONDS = 2
SAME_FAILURES = 3
"""After so many consecutive failures of an update with the same message the run is paused (rule 16)."""
LONGEST_FAILURE = 300
"""Characters of the message that are kept, to be compared and shown."""


@workflow.defn(
    name=names.TRAINING_WORKFLOW,
    failure_exception_types=[ConfigError, ActivityError, ChildWorkflowError],
    versioning_behavior=build_versions.AUTO_UPGRADE,
)
class TrainingWorkflow(StepBatches):
    """One run, or one execution of it between two continue-as-new."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.finished = False
        """The run had finished before this execution began."""

    @workflow.run
    async def run(self, *inputs: Any) -> payloads.Progress:
        """Train until the last step, or until an operator stops the run."""
        try:
            while not await self._train_unless_reset():
                pass
            await self._finish("finished")
        except (asyncio.CancelledError, ActivityError, ChildWorkflowError) as error:
            await self._run_to_end(self._close_after(error))
            await self._run_to_end(self._wait_for_handlers())
            raise_if_cancelled()
            raise
        await self._wait_for_handlers()
        return self.progress()

    async def _train_unless_reset(self) -> bool:
        """Train to the end. False if this execution was reset after the run had ended: it has begun again."""
        try:
            await self._train()
        except ActivityError as error:
            raise_if_cancelled()
            # The store decides whether this is a reset: a replay of a history knows no run id but the first.
            if cause_of(error)[0] != "SupersededError":
                raise
            await self._begin(again=self.cursor.epoch)
            return False
        return True

    async def _wait_for_handlers(self) -> None:
        """Let commands that arrived shortly before the end be answered."""
        self.ended = True
        await asyncio.shield(workflow.wait_condition(workflow.all_handlers_finished))

    async def _train(self) -> None:
        if self.cursor.epoch == 0:
            await self._begin()
        if self.finished:
            return
        await self._acquire_gpu_host()
        while self.cursor.step <= self.cursor.total_steps:
            if self.cursor.step > self.cursor.first_version and not await self._step():
                break
            if self._needs_preflight():
                await self._preflight()
            await self._evaluate_if_due()
            self._next_step()
            if self.cursor.step <= self.cursor.total_steps:
                await self._continue_as_new_if_due()
        self.cursor.step -= 1  # the last completed step

    def _next_step(self) -> None:
        self.cursor.step += 1
        self.cursor.failures = []

    # Before the first step

    async def _begin(self, again: int | None = None) -> None:
        info = workflow.info()
        begin = payloads.BeginInput(
            run=self.name,
            driver=info.first_execution_run_id if again is None else info.run_id,
            file=self.input,
            parent=self.input.parent,
            actor=self.input.actor,
            epoch=again,
            lifts=self.input.lifts if again is None else None,
            asked=self.input.asked if again is None else None,
        )
        state = await store_call(names.BEGIN_RUN, begin, payloads.RunState, "store data sets and run")
        evaluations = payloads.kept_evaluations(state.evaluations)
        self.cursor = payloads.Cursor.taken_from(state, step=state.next_step, evaluations=evaluations)
        self.concurrency = state.concurrency or self.input.concurrency
        self.finished, self.plan, self.closed, self.started = state.finished, None, set(), set()
        workflow.upsert_search_attributes(
            [search.RUN.value_set(self.name), search.ALGORITHM.value_set(self.input.algorithm.name)]
        )

    async def _acquire_gpu_host(self) -> None:
        """Wait until runners poll, this run holds a GPU host, and its engines hold the newest version."""
        interval = self._check_interval()
        while not self.cursor.gpu_queue:
            if reason := (await self._check_runners(with_gpu=True)).waiting_for or await self._claim_gpu_host():
                await self._wait_and_show(reason, interval)
        self._show("waiting", None)

    async def _claim_gpu_host(self) -> str | None:
        """Claim a GPU host and have it load the run's model; the reason if that is not possible now."""
        claim = await gpu_call(names.CLAIM_GPU, self._run_request(), payloads.GpuClaim, self.input.gpu_queue)
        if not claim.granted or not claim.task_queue:
            return claim.waiting_for or "no GPU host is free"
        self._show("waiting", f"GPU host {claim.host} is loading model {self.input.model}")
        summary = "start engines and trainer"
        try:
            await gpu_call(
                names.PREPARE_ENGINES,
                self._run_request(),
                payloads.EngineState,
                claim.task_queue,
                summary,
                start_timeout=START_TIMEOUT,
            )
        except ActivityError as error:
            raise_if_cancelled()
            if not is_host_lost(error):
                raise
            return f"GPU host {claim.host} does not answer, or serves another run"
        self.cursor.gpu_queue = claim.task_queue
        return None

    def _needs_preflight(self) -> bool:
        at_start = self.cursor.step == self.cursor.first_version and self.cursor.total_steps > self.cursor.step
        return at_start and self.input.preflight and not self.cursor.replays and not self.cursor.looked_ahead

    async def _preflight(self) -> None:
        """Run a rollout of each kind while the given model is evaluated; what would fail every time ends the run."""
        self._show("preflight", None)
        evaluating = asyncio.create_task(self._evaluate_if_due())
        try:
            with self._child_open():
                await run_preflight(self._run_request(), self.input, self.cursor.step, lambda: self.paused)
        except (ActivityError, asyncio.CancelledError):
            evaluating.cancel()
            await asyncio.gather(evaluating, return_exceptions=True)
            raise
        self.cursor.looked_ahead = True
        await evaluating

    # A step

    async def _step(self) -> bool:
        """Plan, sample, update. False if an operator stopped the run before this step."""
        self.plan = await self._plan_step()
        if self.plan.state == "stopped":
            return False
        if self.plan.state == "recorded":
            return True
        self._show("sampling", None)
        await self._run_batches(self.plan)
        result = await self._update_policy()
        if result.reward_mean is not None:
            self.cursor.rewards = [*self.cursor.rewards, round(result.reward_mean, 4)][-KEPT_REWARDS:]
        return True

    async def _plan_step(self) -> payloads.StepPlan:
        while True:
            self._show("planning", None)
            plan = await store_call(names.PLAN_STEP, self._step_input(), payloads.StepPlan)
            if plan.state != "paused":
                return plan
            self.paused = True
            await self._wait_until_resumed()

    async def _wait_until_resumed(self) -> None:
        """The run's row says whether it is paused; the signal only shortens the wait."""
        while self.paused:
            self._show("paused", None)
            if not await self.wait(lambda: not self.paused, self.input.check_seconds, "paused"):
                self.paused = (await self._check_runners()).paused

    async def _update_policy(self) -> payloads.UpdateResult:
        """The new policy version, recorded and acknowledged by the engines."""
        tries, interval = 0, self._check_interval()
        await self._wait_until_resumed()
        while True:
            await self._continue_as_new_if_due()
            self._show("updating", None)
            queue, summary = self.cursor.gpu_queue or self.input.gpu_queue, f"make version {self.cursor.step}"
            try:
                return await gpu_call(
                    names.UPDATE_POLICY,
                    self._step_input(),
                    payloads.UpdateResult,
                    queue,
                    summary,
                    start_timeout=START_TIMEOUT,
                )
            except ActivityError as error:
                raise_if_cancelled()
                failure, tries = self._update_failed(error), tries + 1
            if await self._pause_after_same_failures():
                tries, interval = 0, self._check_interval()
            elif tries >= SAME_FAILURES:
                await self._wait_and_show(f"the update failed and is tried again: {failure}", interval)
            if not self.cursor.gpu_queue:
                await self._acquire_gpu_host()

    def _update_failed(self, error: ActivityError) -> str:
        """The message of a failed update, kept to be compared with the next one. Other errors end the run."""
        kind, message = cause_of(error)
        if is_host_lost(error):
            self.cursor.gpu_queue = None  # claim again: the run may be at another host now, or needs another
        elif kind in ("TrainerError", "CheckpointError"):
            self.cursor.failures = [*self.cursor.failures, message[:LONGEST_FAILURE]][-SAME_FAILURES:]
        else:
            raise error
        return message[:LONGEST_FAILURE]

    async def _pause_after_same_failures(self) -> bool:
        """Pause the run until it is resumed, if its update failed several times with the same message."""
        failures = self.cursor.failures
        if len(failures) < SAME_FAILURES or len({*failures}) > 1:
            return False
        self.cursor.failures = []
        await self._pause(f"update of step {self.cursor.step} failed {SAME_FAILURES} times: {failures[-1]}")
        return True

    async def _pause(self, reason: str) -> None:
        await self.change("pause", {"reason": reason, "actor": "relight"}, workflow.uuid4().hex)
        await self._wait_until_resumed()

    # Evaluation

    async def _evaluate_if_due(self) -> None:
        version, last = self.cursor.step, self.cursor.total_steps
        wanted = self.input.evaluation
        due = (
            (wanted.at_start and version == self.cursor.first_version)
            or (wanted.at_end and version == last)
            or (wanted.every > 0 and version > 0 and version % wanted.every == 0)
        )
        if not due or self.input.data.evaluation is None or version <= self.cursor.evaluated:
            return
        self._show("evaluating", None)
        result = await self._evaluation(version)
        self.cursor.evaluated = version
        if result.score is not None:
            self.cursor.evaluations = payloads.kept_evaluations(
                {**self.cursor.evaluations, version: round(result.score, 4)}
            )

    async def _evaluation(self, version: int) -> payloads.EvaluationResult:
        evaluation = payloads.EvaluationInput(
            run=self.name,
            epoch=self.cursor.epoch,
            version=version,
            agent=self.input.agent,
            runner_queue=self.input.runner_queue,
            config=self.input.rollout,
            concurrency=self.concurrency,
            grader_queue=self.input.grader_queue,
        )
        interval = self._check_interval()
        while True:
            try:
                with self._child_open():
                    child = workflow.execute_child_workflow(
                        names.EVALUATION_WORKFLOW,
                        evaluation,
                        id=names.evaluation_id(self.name, version),
                        result_type=payloads.EvaluationResult,
                        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                        search_attributes=search.of_step(self.name, version),
                        static_summary=f"evaluate version {version}",
                    )
                    return await await_then_check_cancel(child)
            except WorkflowAlreadyStartedError:
                await self._wait_and_show(f"an earlier evaluation of version {version} is still running", interval)
            except ChildWorkflowError as error:
                if not may_restart_child(error):
                    raise
                reason = f"the evaluation of version {version} was cancelled or terminated, and is started again"
                await self._wait_and_show(reason, interval)
            self._show("evaluating", None)

    # The end

    async def _run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to the end, even if a cancel comes meanwhile."""
        task = asyncio.create_task(work)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue

    async def _close_after(self, error: BaseException) -> None:
        """Close the run, unless another workflow drives it now."""
        kind, message = cause_of(error)
        if kind == "SupersededError":
            return
        await self._cancel_open_batches()
        if is_cancel_requested() or kind == "CancelRequestedError" or is_cancelled_exception(error):
            await self._finish("cancelled")  # which requests Temporal's cancel, if the store alone recorded one
        else:
            await self._finish("failed", message)

    async def _cancel_open_batches(self) -> None:
        """Cancel the open batches, which outlive this workflow, and wait for them for a limited time (rule 20)."""
        for step, number in sorted(self.started - self.closed):
            batch = workflow.get_external_workflow_handle(names.batch_id(self.name, step, number))
            try:
                await batch.cancel()
            except ApplicationError:
                workflow.logger.info("batch %s of step %s has ended already", number, step)
        await self._wait_for_batches()

    async def _wait_for_batches(self) -> None:
        """Wait until the open batches have ended, and with them their agents, but not for long."""
        open_batches = self.started - self.closed
        ours = [self.batches[batch] for batch in open_batches if batch in self.batches]
        try:
            await workflow.wait_condition(lambda: all(batch.done() for batch in ours), timeout=CANCEL_TIMEOUT)
        except TimeoutError:
            workflow.logger.warning("some of %s batches did not end when they were cancelled", len(ours))
        await self._wait_for_earlier_batches(open_batches - self.batches.keys())

    async def _wait_for_earlier_batches(self, older: set[tuple[int, int]]) -> None:
        """The same for batches that were started before a continue-as-new, which have to be polled."""
        deadline = workflow.time() + CANCEL_TIMEOUT.total_seconds()
        while older and workflow.time() < deadline:
            step = min(older)[0]
            numbers = {number for batch_step, number in older if batch_step == step}
            answer = await self._query_batches(step, numbers, ending=True)
            older -= {(step, number) for number in (*answer.ended, *(report.batch for report in answer.reports))}
            if older:
                await workflow.sleep(CANCEL_POLL_SECONDS)

    async def _finish(self, status: Any, error: str | None = None) -> None:
        if self.cursor.epoch == 0:
            return  # nothing was begun
        finish = payloads.FinishInput(run=self.name, epoch=self.cursor.epoch, status=status, error=error)
        await store_call(names.FINISH_RUN, finish, payloads.RunRequest)
        if self.cursor.gpu_queue:
            await self._release_gpu_host(self.cursor.gpu_queue)
        self.status = status
        self._show(status, None)
        workflow.upsert_search_attributes([search.STATUS.value_set(status)])

    async def _release_gpu_host(self, queue: str) -> None:
        """Release the GPU host. A host that does not answer finds out by itself later that the run has ended."""
        try:
            await gpu_call(names.RELEASE_GPU, self._run_request(), payloads.RunRequest, queue, timeout=RELEASE_TIMEOUT)
        except ActivityError as error:
            workflow.logger.warning("the GPU host was not released: %s", cause_of(error)[1])
