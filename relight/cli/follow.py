"""Follows a run until it ends, by polling Temporal and the store; it goes on when either does not answer.

Temporal says whether a run is under way, the store what it has done. If Temporal does not know a run (its database is
lost, or its retention is over), the store's row is used alone.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from relight.cli.display import Display
from relight.cli.progress import ProgressReporter, RunOutcome, RunSnapshot, status_line
from relight.cli.store_reader import StoreReader
from relight.errors import NotFoundError, OverloadedError, PostgresError, StoreError, TemporalError
from relight.temporal.pollers import names_of_pollers
from relight.types.names import train_id
from relight.types.views import RunView, StepView

RPC_TIMEOUT = timedelta(seconds=5)
POLLS_WITHOUT_ROW = 5
"""After so many polls without a row it is shown if no orchestrator is running."""
ENDED = {
    WorkflowExecutionStatus.COMPLETED: "finished",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
}
UNDER_WAY = "under way"
UNKNOWN = "unknown"
AWAY = "away"


class Source(Protocol):
    """Gives snapshots of a run."""

    async def snapshot(self) -> RunSnapshot:
        """The state of the run now; never raises because a service does not answer."""
        ...


async def follow(source: Source, display: Display, *, interval_seconds: float = 1.0) -> RunSnapshot:
    """Show the run until it ends; returns the last snapshot, which has the outcome."""
    reporter = ProgressReporter()
    while True:
        snapshot = await source.snapshot()
        for event in reporter.events(snapshot):
            display.event(event)
        display.status(status_line(snapshot))
        if snapshot.outcome:
            return snapshot
        await asyncio.sleep(interval_seconds)


class RunSource:
    """Reads snapshots of a run from Temporal and the store."""

    def __init__(self, run: str, reader: StoreReader, client: Client | None, queue: str) -> None:
        self._run = run
        self._reader = reader
        self._client = client
        self._queue = queue
        self._seen = 0
        self._training_seconds = 0.0
        self._polls_without_row = 0

    async def snapshot(self) -> RunSnapshot:
        state = await self._state()  # before the store, so that the last rows of an ended run are seen
        try:
            view: RunView | None = await self._reader.run(self._run)
            steps = await self._reader.steps(self._run, after=self._seen, recorded=True)
        except NotFoundError:
            view, steps = None, []
        except (StoreError, PostgresError, OverloadedError):
            return RunSnapshot(note="waiting: the store service does not answer")
        self._seen = max([self._seen, *(step.step for step in steps)])
        self._training_seconds += sum(step.seconds.get("total", 0.0) for step in steps)
        return replace(await self._combine(state, view, steps), training_seconds=self._training_seconds)

    async def _combine(self, state: str, view: RunView | None, steps: list[StepView]) -> RunSnapshot:
        if state == UNDER_WAY and view is None:
            return RunSnapshot(note=await self._why_no_row())
        if state == AWAY:
            return RunSnapshot(view, steps, note="waiting: the Temporal server does not answer")
        if state == UNKNOWN and view is None:
            raise NotFoundError(f"there is no run {self._run!r}; `relight runs` lists them")
        if state != UNDER_WAY and view and view.drive_again_at:
            return RunSnapshot(view, steps, note=view.error)
        if state == UNKNOWN and view and view.status == "running":
            message = "the Temporal server has no workflow of this run; `relight resume` starts one"
            return RunSnapshot(view, steps, RunOutcome("interrupted", message))
        if state == UNDER_WAY:
            return RunSnapshot(view, steps)
        return RunSnapshot(view, steps, await self._outcome(state, view))

    async def _state(self) -> str:
        if self._client is None:
            return AWAY
        try:
            description = await self._client.get_workflow_handle(train_id(self._run)).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            return UNKNOWN if error.status == RPCStatusCode.NOT_FOUND else AWAY
        return ENDED.get(description.status, UNDER_WAY) if description.status else UNDER_WAY

    async def _outcome(self, state: str, view: RunView | None) -> RunOutcome:
        status = view.status if state == UNKNOWN and view else state
        message = (view.error or "") if view else ""
        if status == "failed":
            message = await self._failure() or message
        return RunOutcome(status, message)

    async def _failure(self) -> str:
        """The message of the workflow's failure: that of the innermost cause."""
        if self._client is None:
            return ""
        try:
            await self._client.get_workflow_handle(train_id(self._run)).result(rpc_timeout=RPC_TIMEOUT)
        except WorkflowFailureError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            return str(getattr(cause, "message", "") or cause)
        except RPCError:
            return ""
        return ""

    async def _why_no_row(self) -> str:
        self._polls_without_row += 1
        if self._polls_without_row <= POLLS_WITHOUT_ROW or await self._is_polled():
            return "starting: an orchestrator stores the run and its data sets"
        return f"waiting: no orchestrator polls task queue {self._queue!r}; start one with `relight orchestrator`"

    async def _is_polled(self) -> bool:
        try:
            return self._client is None or bool(await names_of_pollers(self._client, self._queue))
        except TemporalError:
            return True  # unknown, so no orchestrator is reported as missing
