"""Starts a run: the workflow `train/NAME` with the run file as its input. An existing name goes on or is refused."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from relight.cli.reader import StoreReader
from relight.cli.run_check import differing_keys
from relight.errors import ConfigError, NotFoundError, TemporalError
from relight.types.names import SEARCH_ALGORITHM, SEARCH_RUN, TRAINING_WORKFLOW, train_id
from relight.types.run_file import RunFile


async def launch(client: Client, reader: StoreReader, queue: str, run: str, file: RunFile) -> bool:
    """Start the run, or find it under way; True where it was started.

    Raises:
        ConfigError: the name belongs to a finished run or to another file.
        TemporalError: the server refused.
    """
    await check_existing(reader, run, file)
    try:
        await client.start_workflow(
            TRAINING_WORKFLOW,
            file.model_dump(mode="json", exclude_unset=True),
            id=train_id(run),
            task_queue=queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=_search_attributes(run, file),
            static_summary=f"train {file.agent} with {file.algorithm.name}",
            static_details=_details(file),
        )
    except WorkflowAlreadyStartedError:
        await _check_running(client, run, file)
        return False
    except RPCError as error:
        raise TemporalError(f"the Temporal server did not start {train_id(run)}: {error.message}") from error
    return True


async def is_under_way(client: Client, run: str) -> bool:
    """Whether Temporal drives the run."""
    try:
        description = await client.get_workflow_handle(train_id(run)).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise TemporalError(f"the Temporal server does not tell about {train_id(run)}: {error.message}") from error
    return description.status == WorkflowExecutionStatus.RUNNING


async def check_existing(reader: StoreReader, run: str, file: RunFile) -> None:
    """Refuse a name whose run is finished or has another file (semantics 17)."""
    try:
        view = await reader.run(run)
    except NotFoundError:
        return
    if view.status == "finished":
        raise ConfigError(f"run {run} is finished; start another one with --name")
    require_same(run, view.file, file)


def require_same(run: str, known: dict[str, Any], file: RunFile) -> None:
    """Check that a run's own file says the same.

    Raises:
        ConfigError: it names the keys that differ.
    """
    try:
        before = RunFile.model_validate({key: value for key, value in known.items() if key in RunFile.model_fields})
    except ValidationError:
        return  # written by another release: the workflow judges
    keys = differing_keys(before.model_dump(mode="json"), file.model_dump(mode="json"))
    if keys:
        raise ConfigError(
            f"run {run} exists with another run file; these keys differ: {', '.join(keys)}; "
            "give the same file to go on with it, or start another one with --name"
        )


async def _check_running(client: Client, run: str, file: RunFile) -> None:
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(train_id(run))
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        (known,) = await client.data_converter.decode(started.input.payloads)
        require_same(run, known, file)
        return


def _search_attributes(run: str, file: RunFile) -> TypedSearchAttributes:
    values = {SEARCH_RUN: run, SEARCH_ALGORITHM: file.algorithm.name}
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    )


def _details(file: RunFile) -> str:
    """What the Web UI says of the run for good."""
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
