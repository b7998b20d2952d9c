"""Starting the workflow of a run, by hand or because it was requested over HTTP.

A start that was requested is done again after its orchestrator died, and finds what is there: the run's row, or the
workflow, whose memo names the request. So one request starts one workflow, also where the orchestrator that started it
died before it knew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from relight.errors import ConfigError, OverloadedError, TemporalError
from relight.operators.run_workflows import execution_of, is_open
from relight.operators.start_requests import is_there, mark_of, requested_file
from relight.store.database import Database
from relight.temporal import search_attributes as search
from relight.temporal.connection import as_temporal_error
from relight.types.names import TRAINING_WORKFLOW, train_id
from relight.types.payloads import ChangeResult
from relight.types.run_file import RunFile
from relight.types.views import CommandView

MEMO_KEY = "relight_start"
CHECKS = 10
CHECK_SECONDS = 0.2
"""The longest wait, during which other commands wait too; after it the run is checked again later."""


async def start_run(
    client: Client,
    queue: str,
    run: str,
    file: RunFile,
    extra: Mapping[str, Any] | None = None,
    *,
    new: bool = False,
    memo: Mapping[str, Any] | None = None,
) -> None:
    """Start `train/<run>`.

    Args:
        extra: further keys of the input, in addition to the run file's.
        new: fail if a workflow of this id has completed before.
        memo: of the workflow.

    Raises:
        WorkflowAlreadyStartedError: it is under way, or completed before.
        TemporalError: the server refused.
    """
    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY if new else WorkflowIDReusePolicy.ALLOW_DUPLICATE
    with as_temporal_error(f"start {train_id(run)}"):
        await client.start_workflow(
            TRAINING_WORKFLOW,
            {**file.model_dump(mode="json", exclude_unset=True), **(extra or {})},
            id=train_id(run),
            task_queue=queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=reuse,
            memo=memo,
            search_attributes=search.of_run(run, file.algorithm.name),
            static_summary=f"train {file.agent} with {file.algorithm.name}",
            static_details=_details(file),
        )


def _details(file: RunFile) -> str:
    """The static details of the run in the Web UI."""
    rows = [
        ("agent", file.agent),
        ("model", file.model),
        ("training tasks", file.data.train),
        ("held-out tasks", file.data.evaluation or "-"),
        ("length", f"{file.steps} steps" if file.steps is not None else f"{file.epochs or 1} epochs"),
        ("a step", f"{file.batch_size} tasks x {file.group_size} samples"),
        ("algorithm", f"{file.algorithm.name}, learning rate {file.algorithm.learning_rate:g}"),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


async def start_requested(db: Database, client: Client, queue: str, request: CommandView) -> ChangeResult:
    """Start the run, unless it was started before, and wait until it has begun.

    Raises:
        ConfigError: it can't begin; the message is its workflow's.
        ConflictError: the name belongs to another file by now.
        OverloadedError: it has not begun yet.
    """
    file = requested_file(request)
    mark = mark_of(request)
    done = ChangeResult(accepted=True, after={"run": request.run, "workflow": train_id(request.run)}, effective_step=1)
    for check in range(CHECKS):
        # Asked before the row: a workflow that has ended has written its row before that.
        with as_temporal_error(f"describe {train_id(request.run)}"):
            execution = await execution_of(client, train_id(request.run))
        if await is_there(db, request.run, file):
            return done
        if execution and not is_open(execution) and (await execution.memo()).get(MEMO_KEY) == mark:
            raise ConfigError(await _reason(client, execution))
        if not is_open(execution) and check == 0:
            await _start(client, queue, request, file, mark)
        await asyncio.sleep(CHECK_SECONDS)
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
