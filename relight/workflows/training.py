"""TrainingWorkflow: the one way in.

    begin -> wait for runners and a GPU host -> preflight and evaluate
          -> (plan -> batches -> update -> evaluate every k)* -> finish

Every step of that is an activity that can run twice, and every decision is a row in Postgres before it is acted on;
what is kept here only saves looking. Batches outlive a continue-as-new and report by signal; a lost one costs a minute.
"""

from __future__ import annotations

import asyncio
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
from relight.types import names
from relight.types.payloads import (
    BatchAnswer,
    BatchInput,
    BatchQuery,
    BatchReport,
    BeginInput,
    CheckInput,
    Cursor,
    EngineInput,
    EngineState,
    EvaluationInput,
    EvaluationResult,
    FinishInput,
    GpuClaim,
    Progress,
    Readiness,
    RunRequest,
    RunState,
    StepPlan,
    UpdateResult,
)
from relight.types.shares import share
from relight.workflows import builds, search
from relight.workflows.calls import HOST_PATIENCE, cause_of, gpu_call, is_lost, store_call
from relight.workflows.preflight import look_ahead
from relight.workflows.standing import Standing

CHECK_SECONDS = 60
"""How often a wait looks at the row that it waits for."""
OLD_BATCH_SECONDS = 5
"""How often a batch is started whose id an older execution still holds."""
KEPT_REWARDS = 20
RELEASE_PATIENCE = timedelta(minutes=2)
CANCEL_PATIENCE = timedelta(seconds=30)
"""How long a run that is cancelled waits for its batches (semantics 20)."""
SAME_FAILURES = 3
"""An update that fails so often in the same way pauses the run (semantics 16)."""


@workflow.defn(
    name=names.TRAINING_WORKFLOW,
    failure_exception_types=[ConfigError, ActivityError, ChildWorkflowError],
    versioning_behavior=builds.FOLLOWS,
)
class TrainingWorkflow(Standing):
    """One run, or the part of it between two continue-as-news."""

    @workflow.init
    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self.batches: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self.finished = False
        """The run had ended well before this execution began."""
        self.build = workflow.info().get_current_deployment_version()
        """Of the orchestrator that began this execution; None where they are not versioned."""

    @workflow.run
    async def run(self, raw: Any) -> Progress:
        """Train until the last step, or until somebody says stop."""
        try:
            while not await self._trained():
                pass
        except (asyncio.CancelledError, ActivityError, ChildWorkflowError) as error:
            await self._ended_by(error)
            await self._hear_everyone_out()
            raise
        await self._finish("finished")
        await self._hear_everyone_out()
        return self.progress()

    async def _trained(self) -> bool:
        """Train to the end. False where the run had ended before, and a reset brought this execution back: go on."""
        try:
            await self._train()
        except ActivityError as error:
            # Whether this is a reset is for the store to say: a replay of a history knows no run id but the first.
            if cause_of(error)[0] != "SupersededError" or not workflow.patched("drive-after-reset"):
                raise
            await self._begin(again=self.cursor.epoch)
            return False
        return True

    async def _hear_everyone_out(self) -> None:
        """Let commands that came in the last moment be answered."""
        self.over = True
        await asyncio.shield(workflow.wait_condition(workflow.all_handlers_finished))

    async def _train(self) -> None:
        if self.cursor.epoch == 0:
            await self._begin()
        if self.finished:
            return
        while not await self._host_is_ready():
            pass
        while self.cursor.step <= self.cursor.total_steps:
            if self.cursor.step > self.cursor.first_version and not await self._step():
                break
            if self._looks_ahead() and workflow.patched("preflight"):
                await self._look_ahead()
            await self._evaluate_if_due()
            self.cursor.step += 1
            await self._continue_as_new_if_due()

    # Before the first step

    async def _begin(self, again: int | None = None) -> None:
        info = workflow.info()
        file = self.input.file()
        begin = BeginInput(
            run=self.name,
            driver=info.first_execution_run_id if again is None else info.run_id,
            file=file,
            parent=self.input.parent,
            actor=self.input.actor,
            epoch=again,
        )
        state = await store_call(names.BEGIN_RUN, begin, RunState, "store data sets and run")
        self.cursor = Cursor(
            epoch=state.epoch,
            step=state.next_step,
            total_steps=state.total_steps,
            evaluations=state.evaluations,
            first_version=state.first_version,
            replays=state.replays,
        )
        self.concurrency = state.concurrency or self.input.concurrency
        self.finished, self.plan, self.reports, self.started = state.finished, None, {}, set()
        workflow.upsert_search_attributes(
            [search.RUN.value_set(self.name), search.ALGORITHM.value_set(file.algorithm.name)]
        )

    async def _host_is_ready(self) -> bool:
        """Runners poll, a GPU host is ours and its engines hold the newest version. One look; waits before a False."""
        if self.cursor.gpu_queue:
            return True
        ready = await self._check(with_gpu=True)
        claim = await gpu_call(names.CLAIM_GPU, self._me(), GpuClaim, self.input.gpu_queue) if ready else None
        if claim is None or not claim.granted or not claim.task_queue:
            await self._wait_for(claim.waiting_for if claim else self.waiting_for)
            return False
        self._show("waiting", f"engines on {claim.host} to load {self.input.model}")
        engines = EngineInput(
            run=self.name, epoch=self.cursor.epoch, model=self.input.model, vllm=self.input.vllm, verl=self.input.verl
        )
        summary = "start engines and trainer"
        try:
            await gpu_call(
                names.PREPARE_ENGINES, engines, EngineState, claim.task_queue, summary, host_patience=HOST_PATIENCE
            )
        except ActivityError as error:
            if not is_lost(error):
                raise
            await self._wait_for(f"GPU host {claim.host}")
            return False
        self.cursor.gpu_queue = claim.task_queue
        self._show("waiting", None)
        return True

    async def _check(self, with_gpu: bool = False) -> bool:
        question = CheckInput(
            run=self.name,
            epoch=self.cursor.epoch,
            agent=self.input.agent if self._samples else "",
            runner_queue=self.input.runner_queue,
            gpu_queue=self.input.gpu_queue if with_gpu else None,
            phase="starting" if with_gpu else "sampling",
            grader=self.input.grader if self._samples else None,
        )
        answer = await store_call(names.CHECK_RUNNERS, question, Readiness)
        self._show(self.phase, answer.waiting_for)
        return answer.ready

    async def _wait_for(self, what: str | None) -> None:
        self._show("waiting", what)
        await workflow.sleep(timedelta(seconds=5), summary=f"waiting for {what}")

    def _looks_ahead(self) -> bool:
        at_start = self.cursor.step == self.cursor.first_version and self.cursor.total_steps > self.cursor.step
        return at_start and self.input.preflight and not self.cursor.replays and not self.cursor.looked_ahead

    async def _look_ahead(self) -> None:
        """A rollout of each kind, while the given model is evaluated: what would fail every time ends the run here."""
        self._show("preflight", None)
        evaluating = asyncio.create_task(self._evaluate_if_due())
        try:
            await look_ahead(self._me(), self.input, self.cursor.step, lambda: self.paused)
        except (ActivityError, asyncio.CancelledError):
            evaluating.cancel()
            await asyncio.gather(evaluating, return_exceptions=True)
            raise
        self.cursor.looked_ahead = True
        await evaluating

    # A step

    async def _step(self) -> bool:
        """Plan, sample, update. False where the run was told to stop before this step."""
        self.plan = await self._planned()
        if self.plan.state == "stopped":
            return False
        if self.plan.state == "recorded":
            return True
        self._show("sampling", None)
        await asyncio.gather(*(self._batch(self.plan, number) for number in range(self.plan.batches)))
        result = await self._updated()
        if result.reward_mean is not None:
            self.cursor.rewards = [*self.cursor.rewards, round(result.reward_mean, 4)][-KEPT_REWARDS:]
        return True

    async def _planned(self) -> StepPlan:
        while True:
            self._show("planning", None)
            plan = await store_call(names.PLAN_STEP, self._place(), StepPlan)
            if plan.state != "paused":
                return plan
            await self._while_paused()

    async def _while_paused(self) -> None:
        """Until `resume`; the row says so, the signal only makes it quick."""
        self.paused = True
        self._show("paused", None)
        try:
            await workflow.wait_condition(lambda: not self.paused, timeout=timedelta(seconds=CHECK_SECONDS))
        except TimeoutError:
            return

    async def _batch(self, plan: StepPlan, number: int) -> None:
        """See to it that a batch of the step runs, and wait until it is closed."""
        started = False
        while (plan.step, number) not in self.reports:
            started = started or await self._start_batch(plan, number)
            await self._wait_for_report(plan.step, number, CHECK_SECONDS if started else OLD_BATCH_SECONDS)
            if self._has_ended(plan.step, number) and workflow.patched("restart-ended-batch"):
                started = False
        self.batches.pop((plan.step, number), None)
        self._count(self.reports[plan.step, number])
        self._show("sampling", None)

    async def _start_batch(self, plan: StepPlan, number: int) -> bool:
        batch = BatchInput(
            run=self.name,
            epoch=self.cursor.epoch,
            step=plan.step,
            batch=number,
            agent=self.input.agent,
            runner_queue=self.input.runner_queue,
            config=self.input.rollout,
            concurrency=share(self.concurrency, plan.batches, number) if self.concurrency else None,
            notify=True,
            grader_queue=self.input.grader_queue,
        )
        self.started.add((plan.step, number))
        try:
            self.batches[plan.step, number] = await workflow.start_child_workflow(
                names.BATCH_WORKFLOW,
                batch,
                id=names.batch_id(self.name, plan.step, number),
                result_type=BatchReport,
                parent_close_policy=ParentClosePolicy.ABANDON,
                search_attributes=search.of_step(self.name, plan.step),
                static_summary=f"step {plan.step}, batch {number}",
            )
        except WorkflowAlreadyStartedError:
            return False  # an older epoch's, on its way out, or ours from before a reset: it reports, or we try again
        return True

    def _has_ended(self, step: int, number: int) -> bool:
        """Whether a batch that we started ended without a report: somebody terminated it."""
        batch = self.batches.get((step, number))
        return batch is not None and batch.done() and (step, number) not in self.reports

    async def _wait_for_report(self, step: int, number: int, seconds: int) -> None:
        try:
            await workflow.wait_condition(lambda: (step, number) in self.reports, timeout=timedelta(seconds=seconds))
        except TimeoutError:
            question = BatchQuery(run=self.name, epoch=self.cursor.epoch, step=step, batch=number)
            answer = await store_call(names.BATCH_STATUS, question, BatchAnswer)
            if answer.report:
                self.batch_done(answer.report)
            else:
                await self._check()

    async def _updated(self) -> UpdateResult:
        """The new policy version, recorded and acknowledged by the engines."""
        failures: list[str] = []
        while True:
            self._show("updating", None)
            try:
                queue = self.cursor.gpu_queue or self.input.gpu_queue
                summary = f"make version {self.cursor.step}"
                return await gpu_call(
                    names.UPDATE_POLICY, self._place(), UpdateResult, queue, summary, host_patience=HOST_PATIENCE
                )
            except ActivityError as error:
                if is_lost(error):
                    await self._find_host()
                    continue
                kind, message = cause_of(error)
                if kind not in ("TrainerError", "CheckpointError"):
                    raise
                failures.append(message)
            if failures[-SAME_FAILURES:] == [failures[-1]] * SAME_FAILURES:
                await self._pause_because(f"update of step {self.cursor.step} failed {SAME_FAILURES} times: {message}")
                failures.clear()

    async def _find_host(self) -> None:
        """The GPU host is gone: go on with the one that has the run by now, or that takes it."""
        self.cursor.gpu_queue = None
        while not await self._host_is_ready():
            pass

    async def _pause_because(self, reason: str) -> None:
        await self.change("pause", {"reason": reason, "actor": "relight"}, workflow.uuid4().hex)
        while self.paused:
            await self._while_paused()

    # Evaluation

    async def _evaluate_if_due(self) -> None:
        version, last = self.cursor.step, self.cursor.total_steps
        wanted = self.input.evaluation
        due = (
            (wanted.at_start and version == self.cursor.first_version)
            or (wanted.at_end and version == last)
            or (wanted.every > 0 and version > 0 and version % wanted.every == 0)
        )
        if not due or self.input.data.evaluation is None or version in self.cursor.evaluations:
            return
        self._show("evaluating", None)
        result = await self._evaluation(version)
        if result.reward is not None:
            self.cursor.evaluations[version] = round(result.reward, 4)

    async def _evaluation(self, version: int) -> EvaluationResult:
        evaluation = EvaluationInput(
            run=self.name,
            epoch=self.cursor.epoch,
            version=version,
            agent=self.input.agent,
            runner_queue=self.input.runner_queue,
            config=self.input.rollout,
            concurrency=self.concurrency,
            grader_queue=self.input.grader_queue,
        )
        while True:
            try:
                return await workflow.execute_child_workflow(
                    names.EVALUATION_WORKFLOW,
                    evaluation,
                    id=names.evaluation_id(self.name, version),
                    result_type=EvaluationResult,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    search_attributes=search.of_step(self.name, version),
                    static_summary=f"evaluate version {version}",
                )
            except WorkflowAlreadyStartedError:
                await workflow.sleep(timedelta(seconds=5), summary="an older evaluation of this version is ending")

    # The end, and what is between two executions

    async def _continue_as_new_if_due(self) -> None:
        info = workflow.info()
        long = info.get_current_history_length() > self.input.history_limit
        moved = info.get_current_deployment_version() != self.build  # then patches are needed for one step at most
        if self.cursor.step > self.cursor.total_steps or not (long or moved or info.is_continue_as_new_suggested()):
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        cursor = self.cursor.model_copy(update={"concurrency": self.concurrency})
        workflow.continue_as_new(self.input.model_copy(update={"cursor": cursor}))

    async def _ended_by(self, error: BaseException) -> None:
        """Close the run, unless somebody else drives it now."""
        kind, message = cause_of(error)
        if kind == "SupersededError":
            return
        await asyncio.shield(self._cancel_open_batches())
        if is_cancelled_exception(error):
            await asyncio.shield(self._finish("cancelled"))
        else:
            await asyncio.shield(self._finish("failed", message))

    async def _cancel_open_batches(self) -> None:
        """Batches outlive this workflow, so they are cancelled by id, and waited for, bounded (semantics 20)."""
        for step, number in sorted(self.started - set(self.reports)):
            batch = workflow.get_external_workflow_handle(names.batch_id(self.name, step, number))
            try:
                await batch.cancel()
            except ApplicationError:
                workflow.logger.info("batch %s of step %s has ended already", number, step)
        if workflow.patched("wait-for-cancelled-batches"):
            await self._until_batches_end()

    async def _until_batches_end(self) -> None:
        """Their agents are stopped by then. A batch that doesn't end holds up nobody for long."""
        open_batches = [batch for place, batch in self.batches.items() if place not in self.reports]
        try:
            await workflow.wait_condition(lambda: all(batch.done() for batch in open_batches), timeout=CANCEL_PATIENCE)
        except TimeoutError:
            workflow.logger.warning("some of %s batches did not end when they were cancelled", len(open_batches))

    async def _finish(self, status: Any, error: str | None = None) -> None:
        if self.cursor.epoch == 0:
            return  # nothing was begun
        finish = FinishInput(run=self.name, epoch=self.cursor.epoch, status=status, error=error)
        await store_call(names.FINISH_RUN, finish, RunRequest)
        if self.cursor.gpu_queue:
            await self._release(self.cursor.gpu_queue)
        self._show(status, None)
        workflow.upsert_search_attributes([search.STATUS.value_set(status)])

    async def _release(self, queue: str) -> None:
        """Give the GPU host back. A host that is away now finds out by itself that the run has ended."""
        try:
            await gpu_call(names.RELEASE_GPU, self._me(), RunRequest, queue, patience=RELEASE_PATIENCE)
        except ActivityError as error:
            workflow.logger.warning("the GPU host was not released: %s", cause_of(error)[1])

    @property
    def _samples(self) -> bool:
        """Whether runners are needed at all."""
        return not self.cursor.replays or self.input.data.evaluation is not None
