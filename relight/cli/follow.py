"""Follows a run until it ends: looks at Temporal and the store, survives the death of both.

Whether a run is under way is Temporal's word; what it has done is the store's. Where Temporal knows nothing of a run
(its database is lost, or its retention is over), the store's row is all there is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from relight.cli.pollers import pollers
from relight.cli.progress import Look, Narrator, Outcome, status_line
from relight.cli.reader import StoreReader
from relight.cli.screens import Screen
from relight.errors import NotFoundError, OverloadedError, PostgresError, StoreError, TemporalError
from relight.types.names import train_id
from relight.types.views import RunView, StepView

RPC_TIMEOUT = timedelta(seconds=5)
PATIENCE_LOOKS = 5
"""Looks without a row until we say that no orchestrator takes the run up."""
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
    """Something that can be looked at again and again."""

    async def look(self) -> Look:
        """The state of the run now; never raises for a service that is away."""
        ...


async def follow(source: Source, screen: Screen, *, interval_seconds: float = 1.0) -> Look:
    """Show the run until it ends; the last look has the outcome."""
    narrator = Narrator()
    while True:
        look = await source.look()
        for event in narrator.events(look):
            screen.event(event)
        screen.status(status_line(look))
        if look.outcome:
            return look
        await asyncio.sleep(interval_seconds)


class RunSource:
    """A run on a stack."""

    def __init__(self, run: str, reader: StoreReader, client: Client | None, queue: str) -> None:
        self._run = run
        self._reader = reader
        self._client = client
        self._queue = queue
        self._seen = 0
        self._training_seconds = 0.0
        self._looks_without_row = 0

    async def look(self) -> Look:
        state = await self._state()  # before the store, so that an ended run's last rows are seen
        try:
            view: RunView | None = await self._reader.run(self._run)
            steps = await self._reader.steps(self._run, after=self._seen, recorded=True)
        except NotFoundError:
            view, steps = None, []
        except (StoreError, PostgresError, OverloadedError):
            return Look(note="the store service is away; waiting for it")
        self._seen = max([self._seen, *(step.step for step in steps)])
        self._training_seconds += sum(step.seconds.get("total", 0.0) for step in steps)
        return replace(await self._judge(state, view, steps), training_seconds=self._training_seconds)

    async def _judge(self, state: str, view: RunView | None, steps: list[StepView]) -> Look:
        if state == UNDER_WAY and view is None:
            return Look(note=await self._why_no_row())
        if state == AWAY:
            return Look(view, steps, note="the Temporal server is away; waiting for it")
        if state == UNKNOWN and view is None:
            raise NotFoundError(f"there is no run {self._run!r}; `relight runs` lists them")
        if state == UNKNOWN and view and view.status == "running":
            return Look(view, steps, Outcome("interrupted", "nobody drives it: the Temporal server does not know it"))
        if state == UNDER_WAY:
            return Look(view, steps)
        return Look(view, steps, await self._outcome(state, view))

    async def _state(self) -> str:
        if self._client is None:
            return AWAY
        try:
            description = await self._client.get_workflow_handle(train_id(self._run)).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            return UNKNOWN if error.status == RPCStatusCode.NOT_FOUND else AWAY
        return ENDED.get(description.status, UNDER_WAY) if description.status else UNDER_WAY

    async def _outcome(self, state: str, view: RunView | None) -> Outcome:
        status = view.status if state == UNKNOWN and view else state
        message = (view.error or "") if view else ""
        if status == "failed":
            message = await self._failure() or message
        return Outcome(status, message)

    async def _failure(self) -> str:
        """What the workflow says of its failure: the innermost cause."""
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
        self._looks_without_row += 1
        if self._looks_without_row <= PATIENCE_LOOKS or await self._is_polled():
            return "starting: storing data sets and run"
        return f"waiting for an orchestrator: nobody polls task queue {self._queue!r}; start `relight orchestrator`"

    async def _is_polled(self) -> bool:
        try:
            return self._client is None or bool(await pollers(self._client, self._queue))
        except TemporalError:
            return True  # it can't be told, so nobody is blamed
