"""Activities of the orchestrator: planning, batches, evaluations, changes. Short, and safe to run twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio import activity
from temporalio.client import Client

from relight.activities.effects import carry_out, give_notice
from relight.activities.pollers import why_waiting
from relight.datasets import Tasks, load_tasks, stored_id
from relight.errors import ConfigError, DatasetError, PausedError
from relight.faults import Place, reach
from relight.models import check_model
from relight.store import plans, preflight, regrades, runs
from relight.store.database import Database
from relight.store.descent import inherited_sets
from relight.types import names
from relight.types.payloads import (
    Advance,
    AdvanceInput,
    BatchAnswer,
    BatchQuery,
    BeginInput,
    ChangeInput,
    ChangeResult,
    CheckInput,
    CloseRolloutInput,
    EvaluationResult,
    FinishInput,
    Judgements,
    Notice,
    PreflightState,
    Readiness,
    RegradeInput,
    RegradePage,
    RolloutResult,
    RunRequest,
    RunState,
    StepInput,
    StepPlan,
)
from relight.waiting import come_again


class OrchestratorActivities:
    """Holds what the activities need: Postgres, Temporal, and where relative paths start."""

    def __init__(self, database: Database, client: Client, data_root: Path) -> None:
        self.database = database
        self.client = client
        self.data_root = data_root

    @activity.defn(name=names.BEGIN_RUN)
    async def begin_run(self, begin: BeginInput) -> RunState:
        """Check the file's references, store its data sets, and start the run or go on with it."""
        known = await self.database.row("get_run", begin.run)
        if known is None:
            data = begin.file.data
            await asyncio.to_thread(check_model, begin.file.model, self.data_root)
            same = await inherited_sets(self.database, begin)
            train = await self._tasks(same.get("train", data.train), data.required_fields)
            held_out = same.get("evaluation", data.evaluation)
            evaluation = await self._tasks(held_out, data.required_fields) if held_out else None
        else:
            train = Tasks([], known["train_dataset"], "")
            evaluation = Tasks([], known["eval_dataset"], "") if known["eval_dataset"] else None
        return await runs.begin_run(self.database, begin, train, evaluation)

    async def _tasks(self, source: str, required_fields: list[str]) -> Tasks:
        dataset_id = stored_id(source)
        if dataset_id is None:
            return await asyncio.to_thread(load_tasks, source, self.data_root, required_fields)
        row = await self.database.row("get_dataset", dataset_id)
        if row is None:
            raise DatasetError(f"data set {source}: the store has no such set; give a path or a URL")
        return Tasks([{}] * int(row["row_count"]), dataset_id, source)

    @activity.defn(name=names.CHECK_RUNNERS)
    async def check_runners(self, check: CheckInput) -> Readiness:
        """Whether runners and, if asked, a GPU host poll; the reason is kept in the run's row."""
        reason = await why_waiting(self.client, check)
        async with self.database.transaction() as connection:
            await runs.lock_epoch(self.database, connection, check.run, check.epoch)
            await self.database.execute("set_waiting", check.run, reason, check.phase, connection=connection)
        return Readiness(ready=reason is None, waiting_for=reason)

    @activity.defn(name=names.PLAN_STEP)
    async def plan_step(self, place: StepInput) -> StepPlan:
        """Plan a training step, or return its plan."""
        plan = await plans.plan_step(self.database, place)
        reach(Place.PLANNED)
        return plan

    @activity.defn(name=names.PLAN_EVALUATION)
    async def plan_evaluation(self, place: StepInput) -> StepPlan:
        """Plan an evaluation, or return its plan."""
        try:
            return await plans.plan_evaluation(self.database, place)
        except PausedError as error:
            raise come_again(error.message) from error

    @activity.defn(name=names.RECORD_EVALUATION)
    async def record_evaluation(self, place: StepInput) -> EvaluationResult:
        """Record the mean reward of an evaluation."""
        return await plans.record_evaluation(self.database, place)

    @activity.defn(name=names.ADVANCE_BATCH)
    async def advance_batch(self, batch: AdvanceInput) -> Advance:
        """What is left to run in a batch; close it when nothing is."""
        advance = await plans.advance_batch(self.database, batch)
        if advance.held or advance.warnings is not None:
            await self._give_notice(batch, paused=bool(advance.held))
        if advance.report:
            reach(Place.BATCH_CLOSED)
        return advance

    async def _give_notice(self, run: RunRequest, paused: bool) -> None:
        row = await self.database.row("get_run", run.run)
        if row is not None:
            notice = Notice(run=run.run, epoch=run.epoch, paused=paused and row["paused"], warnings=row["warnings"])
            await give_notice(self.client, notice)

    @activity.defn(name=names.ADVANCE_PREFLIGHT)
    async def advance_preflight(self, run: RunRequest) -> PreflightState:
        """The rollouts of the preflight that are to be played now."""
        state, warned = await preflight.advance(self.database, run)
        if warned:
            await self._give_notice(run, paused=False)
        return state

    @activity.defn(name=names.BATCH_STATUS)
    async def batch_status(self, query: BatchQuery) -> BatchAnswer:
        """The report of a batch, if it has closed."""
        return BatchAnswer(report=await plans.batch_report(self.database, query.run, query.step, query.batch))

    @activity.defn(name=names.CLOSE_ROLLOUT)
    async def close_rollout(self, close: CloseRolloutInput) -> RolloutResult:
        """Close a rollout as cancelled."""
        return await plans.cancel_rollout(self.database, close)

    @activity.defn(name=names.CHANGE_RUN)
    async def change_run(self, change: ChangeInput) -> ChangeResult:
        """Do an operator's command and write its audit row."""
        result = await runs.change_run(self.database, change)
        await carry_out(self.database, self.client, change, result)
        return result

    @activity.defn(name=names.FINISH_RUN)
    async def finish_run(self, finish: FinishInput) -> RunRequest:
        """Close a run."""
        await runs.finish_run(self.database, finish)
        return RunRequest(run=finish.run, epoch=finish.epoch)

    @activity.defn(name=names.BEGIN_REGRADE)
    async def begin_regrade(self, asked: RegradeInput) -> RegradePage:
        """Check what is asked, and that somebody serves the grader."""
        own = await regrades.check_regrade(self.database, asked)
        check = CheckInput(run=asked.run, agent="", runner_queue=asked.runner_queue, grader=asked.grader)
        if reason := await why_waiting(self.client, check):
            raise ConfigError(reason)
        await regrades.begin_regrade(self.database, asked, own, f"regrade/{activity.info().workflow_run_id}")
        return RegradePage()

    @activity.defn(name=names.LIST_UNGRADED)
    async def list_ungraded(self, asked: RegradeInput) -> RegradePage:
        """The next attempts that the grader has not judged."""
        return await regrades.list_ungraded(self.database, asked)

    @activity.defn(name=names.RECORD_JUDGEMENTS)
    async def record_judgements(self, given: Judgements) -> RegradePage:
        """Keep the grader's rewards beside the others."""
        await regrades.record_judgements(self.database, given)
        return RegradePage()
