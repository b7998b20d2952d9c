"""Waits of any length that stay within Temporal's limit on the events of a history."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow

from relight.types.payloads import CHECK_SECONDS, Cursor
from relight.workflows.training_base import TrainingWorkflowBase

FIRST_CHECK_SECONDS = 5
LONG_HISTORY_SECONDS = 3600
"""The interval between checks where the history is long, and a child that is open forbids a continue-as-new."""


class CheckInterval:
    """The time until the next check: a sixth of the wait so far, 5 seconds to a minute; an hour in a long history."""

    def __init__(self, longest_seconds: float = CHECK_SECONDS) -> None:
        self._began = workflow.time()
        self._longest = longest_seconds

    def seconds(self) -> float:
        """Until the next check."""
        if workflow.info().is_continue_as_new_suggested():
            return LONG_HISTORY_SECONDS
        return min(max((workflow.time() - self._began) / 6, FIRST_CHECK_SECONDS), self._longest)


class OpenChildren:
    """Counts the children under way that a continue-as-new would cancel."""

    open_children = 0

    @contextmanager
    def _child_open(self) -> Generator[None]:
        """Forbid continue-as-new inside the block: it would cancel the child that is open there."""
        self.open_children += 1
        try:
            yield
        finally:
            self.open_children -= 1


class WaitingWorkflowBase(OpenChildren, TrainingWorkflowBase):
    """A run that can wait, and continues as new when its history has become long."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.build = workflow.info().get_current_deployment_version()
        """The build of the orchestrator that began this execution; None without versioned builds."""

    async def wait(self, until: Callable[[], bool], seconds: float, summary: str) -> bool:
        """Wait until a condition holds or the time is over; whether it holds. May continue as new instead."""
        await self._continue_as_new_if_due()
        try:
            await workflow.wait_condition(until, timeout=timedelta(seconds=seconds), timeout_summary=summary)
        except TimeoutError:
            return False
        return True

    def _check_interval(self) -> CheckInterval:
        return CheckInterval(self.input.check_seconds)

    async def _wait_and_show(self, reason: str, interval: CheckInterval) -> None:
        """Show why the run waits, until the next check is due or a signal or command comes."""
        self._show("waiting", reason)
        seen = self.event_count
        await self.wait(lambda: self.event_count > seen, interval.seconds(), f"waiting: {reason}")

    async def _continue_as_new_if_due(self) -> None:
        """Begin a new history if this one is long or another build is current."""
        info = workflow.info()
        long = info.get_current_history_length() > self.input.history_limit or info.is_continue_as_new_suggested()
        build_changed = info.get_current_deployment_version() != self.build
        if self.open_children or not (long or build_changed):
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self.input.model_copy(update={"cursor": self._carried()}))

    def _carried(self) -> Cursor:
        """The state that the next execution needs; of the batches only those of the open step."""
        step = self.cursor.step
        return self.cursor.model_copy(
            update={
                "concurrency": self.concurrency,
                "started": sorted(batch for batch in self.started if batch[0] == step),
                "closed": sorted(batch for batch in self.closed if batch[0] == step),
                "phase": self.phase,
                "waiting_for": self.waiting_for,
                "paused": self.paused,
                "refused": self.refused,
            }
        )
