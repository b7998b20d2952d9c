"""The state of TrainingWorkflow, its progress query, and its signals from batches and from the store."""

from __future__ import annotations

from typing import Any, Literal

from temporalio import workflow

from relight.temporal import search_attributes as search
from relight.types import names, payloads
from relight.workflows.activity_calls import store_call
from relight.workflows.command_handlers import CommandHandlers
from relight.workflows.input import parse_input, run_name


class TrainingWorkflowBase(CommandHandlers):
    """The state of a run and its handlers; the subclasses do the work."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__()
        self.name = run_name()
        self.input = parse_input(inputs)
        self.cursor = self.input.cursor or payloads.Cursor(epoch=0, step=0, total_steps=0)
        self.phase, self.waiting_for = self.cursor.phase, self.cursor.waiting_for
        self.paused, self.refused = self.cursor.paused, self.cursor.refused
        self.plan: payloads.StepPlan | None = None
        self.started = set(self.cursor.started)
        """Batches by step and number, as `closed`."""
        self.closed = set(self.cursor.closed)
        self.concurrency = self.cursor.concurrency or self.input.concurrency
        self.event_count = 0
        """Signals and commands so far: each ends a wait."""
        self.status: Literal["running", "finished", "failed", "cancelled"] = "running"
        self.shown_reason = self._waiting_reason()
        """The reason that the search attribute shows."""
        self.ended = False

    @workflow.signal(name=names.BATCH_DONE)
    def batch_done(self, report: payloads.BatchReport) -> None:
        """A batch has closed. A report that comes twice counts once."""
        self.event_count += 1
        if (report.step, report.batch) not in self.closed:
            self.closed.add((report.step, report.batch))
            self._count(report)
            self._show(self.phase, self.waiting_for)

    @workflow.signal(name=names.NOTICE)
    def notice(self, notice: payloads.Notice) -> None:
        """The store paused the run, or changed its warnings."""
        self.event_count += 1
        if notice.epoch == self.cursor.epoch:
            self.paused = self.paused or notice.paused
            self.cursor.warnings = notice.warnings
            self._show(self.phase, self.waiting_for)

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> payloads.Progress:
        """The run's progress."""
        step = self.cursor.step
        return payloads.Progress.taken_from(
            self.cursor,
            run=self.name,
            status="paused" if self.paused and self.status == "running" else self.status,
            phase=self.phase,
            paused=self.paused,
            waiting_for=self.waiting_for,
            batches=self.plan.batches if self.plan else 0,
            batches_done=sum(1 for closed, _ in self.closed if closed == step),
            refused=self.refused,
        )

    async def change(self, action: str, value: Any, key: str) -> payloads.ChangeResult:
        """Execute one command, and show what it changed."""
        result = await super().change(action, value, key)
        self._show(self.phase, self.waiting_for)
        return result

    async def record_change(self, change: payloads.ChangeInput) -> payloads.ChangeResult:
        """Ask the store to change the run; the audit row is written before this answers."""
        # A command may come before the run's row is there.
        await workflow.wait_condition(lambda: self.cursor.epoch > 0 or self.ended)
        if self.cursor.epoch == 0:
            return payloads.ChangeResult(accepted=False, reason="the run could not begin")
        request = change.model_copy(update={"run": self.name, "epoch": self.cursor.epoch})
        result = await store_call(
            names.CHANGE_RUN, request, payloads.ChangeResult, f"{change.action} by {change.actor}"
        )
        self.event_count += 1
        return result

    def _run_request(self) -> payloads.RunRequest:
        return payloads.RunRequest(run=self.name, epoch=self.cursor.epoch)

    def _step_input(self) -> payloads.StepInput:
        return payloads.StepInput(run=self.name, epoch=self.cursor.epoch, step=self.cursor.step)

    def _count(self, report: payloads.BatchReport) -> None:
        counts = self.cursor.counters
        for name, number in (("rollouts", report.succeeded + report.failed), ("retried", report.retried)):
            counts[name] = counts.get(name, 0) + number
        for name, number in report.failures.items():
            counts[name] = counts.get(name, 0) + number

    def _show(self, phase: str, waiting_for: str | None) -> None:
        """Show in Temporal's own tools what the run is doing."""
        self.phase, self.waiting_for = phase, waiting_for
        workflow.set_current_details(progress_table(self.progress()))
        reason = self._waiting_reason()
        if reason != self.shown_reason:
            self.shown_reason = reason
            workflow.upsert_search_attributes([search.waiting(reason)])

    def _waiting_reason(self) -> str | None:
        return self.waiting_for or ("paused" if self.paused and self.status == "running" else None)


def progress_table(progress: payloads.Progress) -> str:
    """The run as a table in markdown, for its details in the Temporal Web UI."""
    rows = [
        ("phase", "paused" if progress.paused else progress.phase),
        ("waiting", progress.waiting_for or "-"),
        *((f"warning: {name}", text.replace("|", "/")) for name, text in sorted(progress.warnings.items())),
        ("step", f"{progress.step} of {progress.total_steps}"),
        ("batches of this step", f"{progress.batches_done} of {progress.batches} closed"),
        ("reward of the last steps", " ".join(f"{reward:.2f}" for reward in progress.rewards) or "-"),
        ("held-out score by version", ", ".join(f"{v}: {r:.3f}" for v, r in progress.evaluations.items()) or "-"),
        *((f"{name}", str(number)) for name, number in sorted(progress.counters.items())),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)
