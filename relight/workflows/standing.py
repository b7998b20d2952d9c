"""Where a run stands, and what others see of it and say to it."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from relight.types import names
from relight.types.payloads import (
    BatchReport,
    ChangeInput,
    ChangeResult,
    Cursor,
    Notice,
    Progress,
    RunRequest,
    StepInput,
    StepPlan,
)
from relight.workflows.calls import store_call
from relight.workflows.commands import CommandHandlers
from relight.workflows.details import details
from relight.workflows.input import parse_input, run_name


class Standing(CommandHandlers):
    """What `TrainingWorkflow` knows of its run."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self.name = run_name()
        self.input = parse_input(raw)
        self.cursor = self.input.cursor or Cursor(epoch=0, step=0, total_steps=0)
        self.phase = "starting"
        self.waiting_for: str | None = None
        self.plan: StepPlan | None = None
        self.reports: dict[tuple[int, int], BatchReport] = {}
        self.started: set[tuple[int, int]] = set()
        self.concurrency = self.cursor.concurrency or self.input.concurrency
        self.over = False

    @workflow.signal(name=names.BATCH_DONE)
    def batch_done(self, report: BatchReport) -> None:
        """A batch has closed. Told twice, it counts once."""
        self.reports.setdefault((report.step, report.batch), report)

    @workflow.signal(name=names.NOTICE)
    def notice(self, notice: Notice) -> None:
        """The store found something: the run has paused itself, or should know of something."""
        if notice.epoch == self.cursor.epoch:
            self.paused = self.paused or notice.paused
            self.cursor.warnings = notice.warnings
            self._show(self.phase, self.waiting_for)

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> Progress:
        """Where the run stands."""
        step = self.cursor.step
        return Progress(
            run=self.name,
            status="paused" if self.paused else "running",
            phase=self.phase,
            step=step,
            total_steps=self.cursor.total_steps,
            paused=self.paused,
            waiting_for=self.waiting_for,
            batches=self.plan.batches if self.plan else 0,
            batches_done=sum(1 for reported, _ in self.reports if reported == step),
            rewards=self.cursor.rewards,
            evaluations=self.cursor.evaluations,
            refused=self.refused,
            counters=self.cursor.counters,
            warnings=self.cursor.warnings,
        )

    async def record_change(self, change: ChangeInput) -> ChangeResult:
        """Ask the store to change the run; the audit row is written before this answers."""
        # A command may come before the run's row is there.
        await workflow.wait_condition(lambda: self.cursor.epoch > 0 or self.over)
        if self.cursor.epoch == 0:
            return ChangeResult(accepted=False, reason="the run could not begin")
        asked = change.model_copy(update={"run": self.name, "epoch": self.cursor.epoch})
        return await store_call(names.CHANGE_RUN, asked, ChangeResult, f"{change.action} by {change.actor}")

    def _me(self) -> RunRequest:
        return RunRequest(run=self.name, epoch=self.cursor.epoch)

    def _place(self) -> StepInput:
        return StepInput(run=self.name, epoch=self.cursor.epoch, step=self.cursor.step)

    def _count(self, report: BatchReport) -> None:
        counts = self.cursor.counters
        for name, number in (("rollouts", report.succeeded + report.failed), ("retried", report.retried)):
            counts[name] = counts.get(name, 0) + number
        for name, number in report.failures.items():
            counts[name] = counts.get(name, 0) + number

    def _show(self, phase: str, waiting_for: str | None) -> None:
        """Make the Web UI tell what the run is doing."""
        self.phase, self.waiting_for = phase, waiting_for
        workflow.set_current_details(details(self.progress()))
