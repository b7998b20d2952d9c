"""Activities of the orchestrator: planning, batches, evaluations, changes. Short, and safe to run twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio import activity
from temporalio.client import Client

from relight.activities.readiness import why_waiting
from relight.datasets import Tasks, load_tasks
from relight.errors import ConfigError
from relight.faults import FaultPoint, fault_point
from relight.models import check_model
from relight.operators.command_transactions import change_run
from relight.operators.run_workflows import execution_of, is_open
from relight.operators.signals import cancel_workflow, give_notice, signal_workflows
from relight.store.database import Database
from relight.store.datasets.named import find_stored
from relight.store.runs import lifecycle
from relight.store.runs.lineage import inherited_sets
from relight.store.runs.rows import find_run, get_run
from relight.store.training import plans, preflight, regrades
from relight.temporal.connection import address_of
from relight.types import names, payloads

REPORTS_AT_ONCE = 20
"""More would not fit into a payload; the reports of other closed batches come with the next check."""


class OrchestratorActivities:
    """Holds what the activities need: Postgres, Temporal, and where relative paths start."""

    def __init__(self, database: Database, client: Client, data_root: Path) -> None:
        self.database = database
        self.client = client
        self.data_root = data_root

    @activity.defn(name=names.BEGIN_RUN)
    async def begin_run(self, begin: payloads.BeginInput) -> payloads.RunState:
        """Check the file's references, store its data sets, and start the run or continue it."""
        address, namespace = address_of(self.client)
        begin = begin.model_copy(update={"temporal_address": address, "temporal_namespace": namespace})
        known = await find_run(self.database, begin.run)
        if known is None:
            data = begin.file.data
            await asyncio.to_thread(check_model, begin.file.model, self.data_root)
            same = await inherited_sets(self.database, begin)
            train = await self._tasks(same.get("train", data.train), data.required_fields)
            held_out = same.get("evaluation", data.evaluation)
            evaluation = await self._tasks(held_out, data.required_fields) if held_out else None
        else:
            train = Tasks([], known.train_dataset, "")
            evaluation = Tasks([], known.eval_dataset, "") if known.eval_dataset else None
        return await lifecycle.begin_run(self.database, begin, train, evaluation)

    async def _tasks(self, source: str, required_fields: list[str]) -> Tasks:
        stored = await find_stored(self.database, source, required_fields)
        if stored is None:
            return await asyncio.to_thread(load_tasks, source, self.data_root, required_fields)
        dataset_id, rows = stored
        return Tasks([{}] * rows, dataset_id, source)

    @activity.defn(name=names.CHECK_RUNNERS)
    async def check_runners(self, check: payloads.CheckInput) -> payloads.Readiness:
        """Whether runners and, if asked, a GPU host poll; the reason is kept in the run's row."""
        reason = await why_waiting(self.client, check)
        async with self.database.transaction() as tx:
            run = await lifecycle.lock_wanted(tx, check.run, check.epoch)
            await tx.execute("set_waiting", check.run, reason, check.phase)
        return payloads.Readiness(waiting_for=reason, paused=run.paused)

    @activity.defn(name=names.PLAN_STEP)
    async def plan_step(self, request: payloads.StepInput) -> payloads.StepPlan:
        """Plan a training step, or return its plan."""
        plan = await plans.plan_step(self.database, request)
        fault_point(FaultPoint.PLANNED)
        return plan

    @activity.defn(name=names.PLAN_EVALUATION)
    async def plan_evaluation(self, request: payloads.StepInput) -> payloads.StepPlan:
        """Plan an evaluation, or return its plan."""
        return await plans.plan_evaluation(self.database, request)

    @activity.defn(name=names.RECORD_EVALUATION)
    async def record_evaluation(self, request: payloads.StepInput) -> payloads.EvaluationResult:
        """Record the scores of an evaluation."""
        return await plans.record_evaluation(self.database, request)

    @activity.defn(name=names.ADVANCE_BATCH)
    async def advance_batch(self, batch: payloads.NextRolloutsInput) -> payloads.NextRollouts:
        """The rollouts that are left to run in a batch; closes it if there are none."""
        advance = await plans.advance_batch(self.database, batch)
        if advance.held or advance.warnings is not None:
            await self._give_notice(batch, paused=bool(advance.held))
        if advance.report:
            fault_point(FaultPoint.BATCH_CLOSED)
        return advance

    async def _give_notice(self, run: payloads.RunRequest, paused: bool) -> None:
        row = await get_run(self.database, run.run)
        notice = payloads.Notice(run=run.run, epoch=run.epoch, paused=paused and row.paused, warnings=row.warnings)
        await give_notice(self.client, notice)

    @activity.defn(name=names.ADVANCE_PREFLIGHT)
    async def advance_preflight(self, run: payloads.RunRequest) -> payloads.PreflightState:
        """The rollouts of the preflight that have to run now."""
        state, warned = await preflight.advance(self.database, run)
        if warned:
            await self._give_notice(run, paused=False)
        return state

    @activity.defn(name=names.BATCH_STATUS)
    async def batch_status(self, query: payloads.BatchQuery) -> payloads.BatchAnswer:
        """The reports of closed batches, and why the run waits if others are open."""
        # Temporal first: a batch closes its row before it ends.
        ended = {number for number in query.batches if await self._has_ended(query, number)}
        found = [await plans.batch_report(self.database, query.run, query.step, number) for number in query.batches]
        reports = [report for report in found if report]
        ended -= {report.batch for report in reports}
        ready = payloads.Readiness() if query.ending else await self.check_runners(query)
        return payloads.BatchAnswer(**ready.model_dump(), reports=reports[:REPORTS_AT_ONCE], ended=sorted(ended))

    async def _has_ended(self, query: payloads.BatchQuery, number: int) -> bool:
        return not is_open(await execution_of(self.client, names.batch_id(query.run, query.step, number)))

    @activity.defn(name=names.CLOSE_ROLLOUT)
    async def close_rollout(self, close: payloads.CloseRolloutInput) -> payloads.RolloutResult:
        """Close a rollout as cancelled."""
        return await plans.cancel_rollout(self.database, close)

    @activity.defn(name=names.CHANGE_RUN)
    async def change_run(self, change: payloads.ChangeInput) -> payloads.ChangeResult:
        """Do an operator's command and write its audit row."""
        result = await change_run(self.database, change)
        await signal_workflows(self.database, self.client, change, result, activity.info().workflow_run_id or "")
        return result

    @activity.defn(name=names.FINISH_RUN)
    async def finish_run(self, finish: payloads.FinishInput) -> payloads.RunRequest:
        """Close a run. A workflow that learned of a cancel from the store is cancelled here."""
        await lifecycle.finish_run(self.database, finish)
        if finish.status == "cancelled":
            await cancel_workflow(self.client, finish.run, activity.info().workflow_run_id or "")
        return payloads.RunRequest(run=finish.run, epoch=finish.epoch)

    @activity.defn(name=names.BEGIN_REGRADE)
    async def begin_regrade(self, asked: payloads.RegradeInput) -> payloads.RegradePage:
        """Check the request, and that a runner serves the grader."""
        own = await regrades.check_regrade(self.database, asked)
        check = payloads.CheckInput(run=asked.run, agent="", runner_queue=asked.runner_queue, grader=asked.grader)
        if reason := await why_waiting(self.client, check):
            raise ConfigError(reason)
        await regrades.begin_regrade(self.database, asked, own, f"regrade/{activity.info().workflow_run_id}")
        return payloads.RegradePage()

    @activity.defn(name=names.LIST_UNGRADED)
    async def list_ungraded(self, asked: payloads.RegradeInput) -> payloads.RegradePage:
        """The next attempts that the grader has not graded."""
        return await regrades.list_ungraded(self.database, asked)

    @activity.defn(name=names.RECORD_REGRADES)
    async def record_regrades(self, given: payloads.RegradedRewards) -> payloads.RegradePage:
        """Keep the grader's rewards beside the others."""
        await regrades.record_regrades(self.database, given)
        return payloads.RegradePage()
