"""Starts a run: the workflow `train/NAME` with the run file as its input. An existing name goes on or is refused."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import WorkflowAlreadyStartedError

from relight.cli.store_reader import StoreReader
from relight.errors import ConfigError, NotFoundError
from relight.operators.start_requests import REFUSED
from relight.operators.starting import start_run
from relight.types.names import train_id
from relight.types.run_file import RunFile, known_keys, parse_run_file
from relight.types.run_file_differences import require_same_file


async def launch(client: Client, reader: StoreReader, queue: str, run: str, file: RunFile) -> bool:
    """Start the run, or find it under way; True where it was started.

    Raises:
        ConfigError: the name belongs to a finished run or to another file.
        TemporalError: the server refused.
    """
    await check_existing(reader, run, file)
    try:
        await start_run(client, queue, run, file)
    except WorkflowAlreadyStartedError:
        await _check_running(client, run, file)
        return False
    return True


async def check_existing(reader: StoreReader, run: str, file: RunFile) -> None:
    """Refuse a name whose run is finished or has another file (rule 17)."""
    try:
        view = await reader.run(run)
    except NotFoundError:
        return
    if view.status == REFUSED:
        return  # it was requested and never began
    if view.status == "finished":
        raise ConfigError(f"run {run} is finished; start another one with --name")
    if view.cancel_requested:
        raise ConfigError(f"run {run} was cancelled; `relight resume {run}` drives it again")
    _check_same(run, view.file, file)


def _check_same(run: str, known: dict[str, Any], file: RunFile) -> None:
    try:
        before = parse_run_file(known_keys(known))
    except ConfigError:
        return  # written by another release: the workflow decides
    require_same_file(run, before, file)


async def _check_running(client: Client, run: str, file: RunFile) -> None:
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(train_id(run))
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        (known,) = await client.data_converter.decode(started.input.payloads)
        _check_same(run, known, file)
        return
