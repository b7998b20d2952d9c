"""Starts a run that was requested over HTTP, and waits until it has begun.

If the orchestrator dies, the next one finds the run's row, or the workflow, whose memo names the request. So one
request starts one workflow.
"""

from __future__ import annotations

import asyncio

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from relight.errors import ConfigError, OverloadedError, TemporalError
from relight.operators.run_workflows import execution_of, is_open
from relight.operators.start_requests import is_there, mark_of
from relight.operators.starting import start_run
from relight.store.database import Database
from relight.temporal.connection import refusals_as_temporal_error
from relight.types.names import train_id
from relight.types.payloads import ChangeResult
from relight.types.run_file import RunFile, parse_run_file
from relight.types.views import CommandView

MEMO_KEY = "relight_start"
LOOKS = 10
LOOK_SECONDS = 0.2
"""The longest wait, during which other commands wait too; after it the run is checked again later."""


async def start(db: Database, client: Client, queue: str, request: CommandView) -> ChangeResult:
    """Start the run, unless it was started before, and wait until it has begun.

    Raises:
        ConfigError: it can't begin; the message is its workflow's.
        ConflictError: the name belongs to another file by now.
        OverloadedError: it has not begun yet.
    """
    file = parse_run_file(request.value["file"])
    mark = mark_of(request)
    done = ChangeResult(accepted=True, after={"run": request.run, "workflow": train_id(request.run)}, effective_step=1)
    for look in range(LOOKS):
        # Asked before the row: a workflow that has ended has written its row before that.
        with refusals_as_temporal_error(f"describe {train_id(request.run)}"):
            execution = await execution_of(client, train_id(request.run))
        if await is_there(db, request.run, file):
            return done
        if execution and not is_open(execution) and (await execution.memo()).get(MEMO_KEY) == mark:
            raise ConfigError(await _reason(client, execution))
        if not is_open(execution) and look == 0:
            await _start(client, queue, request, file, mark)
        await asyncio.sleep(LOOK_SECONDS)
    raise OverloadedError(f"its workflow {train_id(request.run)} was started and has not begun yet")


async def _start(client: Client, queue: str, request: CommandView, file: RunFile, mark: str) -> None:
    try:
        extra = {"actor": request.actor, "asked": mark}
        await start_run(client, queue, request.run, file, extra, memo={MEMO_KEY: mark})
    except WorkflowAlreadyStartedError:
        return  # by another orchestrator, or by hand: its row says of which file it is
    except TemporalError as error:
        cause = error.__cause__
        if isinstance(cause, RPCError) and cause.status is RPCStatusCode.INVALID_ARGUMENT:
            raise ConfigError(f"Temporal does not take the run file: {cause.message}") from error
        raise


async def _reason(client: Client, execution: WorkflowExecutionDescription) -> str:
    """Why a workflow ended before its run had begun."""
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        await handle.result()
    except WorkflowFailureError as error:
        found: BaseException = error
        while found.__cause__ is not None:
            found = found.__cause__
        return str(getattr(found, "message", found)) or type(found).__name__
    return "its workflow ended before the run had begun"
