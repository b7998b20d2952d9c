"""Runs that were requested over HTTP: rows of `commands`, until an orchestrator has started them.

The request is acknowledged once its row is written, so the store service needs no Temporal, and the run is started once
even if processes die. A name identifies one run: the same name and file again is the same request. A run that could not
be started may be requested again.
"""

from __future__ import annotations

from typing import Any

from relight.errors import ConflictError, DatasetError, InvalidRequestError, NotFoundError
from relight.operators.command_requests import get_request
from relight.store.database import Database, Queries, Transaction
from relight.store.datasets.named import find_stored
from relight.store.runs.rows import find_run
from relight.store.runs.views import RunViews
from relight.types.names import CANCEL, RUN_NAME, START
from relight.types.payloads import ChangeResult
from relight.types.run_file import RunFile, parse_run_file
from relight.types.run_file_differences import require_same_file
from relight.types.views import CommandView, RunView

REQUESTED, REFUSED = "requested", "refused"


def start_key(run: str) -> str:
    """The id of the command that starts a run."""
    return f"{START}/{run}"


async def request_start(db: Database, run: str, file: RunFile, actor: str) -> None:
    """Write the row of a request to start a run, unless it has begun or was requested already.

    Raises:
        InvalidRequestError: the name is invalid, or the file names a data set that is not in the store.
        ConflictError: the name belongs to another file.
    """
    if not RUN_NAME.fullmatch(run):
        raise InvalidRequestError(f"name: {run[:100]!r} is invalid; it must match {RUN_NAME.pattern}")
    async with db.transaction() as tx:
        await _check_sets(tx, file)
        if await is_there(tx, run, file):
            return
        value = {"file": file.model_dump(mode="json", exclude_unset=True), "actor": actor}
        await tx.execute("insert_request", start_key(run), run, START, value, actor)
        row = await tx.one("lock_request", start_key(run))
        await _request_again(tx, CommandView.model_validate(dict(row)), value, file)


async def _check_sets(tx: Transaction, file: RunFile) -> None:
    sources = {key: source for key in ("train", "evaluation") if (source := getattr(file.data, key)) is not None}
    for key, source in sorted(sources.items(), key=lambda item: item[1]):  # names are locked in one order
        try:
            await find_stored(tx, source, file.data.required_fields)
        except DatasetError as error:
            raise InvalidRequestError(f"run file: data.{key}: {error.message}") from error


async def is_there(db: Queries, run: str, file: RunFile) -> bool:
    """Whether the run has begun.

    Raises:
        ConflictError: its name belongs to another file.
    """
    row = await find_run(db, run)
    if row is not None:
        require_same_file(run, row.file, file, ConflictError)
    return row is not None


async def _request_again(tx: Transaction, known: CommandView, value: dict[str, Any], file: RunFile) -> None:
    if known.action != START:
        raise ConflictError(f"name: {known.run!r} is not available: a command has the id {known.command_id}")
    if known.done_at is not None:  # refused, or its run is gone
        await tx.execute("renew_request", known.command_id, value, value["actor"])
        return
    require_same_file(known.run, requested_file(known), file, ConflictError)


def requested_file(request: CommandView) -> RunFile:
    """The run file of a request to start a run."""
    return parse_run_file(request.value["file"])


def mark_of(request: CommandView) -> str:
    """The id of a request in its workflow's memo; a run that is requested again has another."""
    return f"{request.command_id}@{request.created_at.isoformat()}"


async def cancel_request(db: Database, key: str, run: str, value: dict[str, Any]) -> CommandView | None:
    """Cancel a run that was requested and has not begun; None if there is no such request. `value`: the command's.

    A workflow that an orchestrator started for it meanwhile ends before it begins the run.
    """
    actor = str(value["actor"])
    async with db.transaction() as tx:
        row = await tx.row("lock_request", start_key(run))
        if row is not None and await tx.row("get_request", key) is not None:
            return await get_request(db, key)  # the same key twice is one command
        if row is None or row["action"] != START or row["done_at"] is not None:
            return None
        if await find_run(tx, run) is not None:  # it began while the request was locked
            return None
        await tx.execute("finish_request", start_key(run), None, f"cancelled by {actor}")
        result = ChangeResult(accepted=True, before={"status": REQUESTED}, after={"run": run, "status": REFUSED})
        audit = (None, actor, CANCEL, result.before, result.after, None, None, f"update/{key}")
        await tx.execute("insert_audit", run, *audit)
        await tx.execute("insert_request", key, run, CANCEL, value, actor)
        await tx.execute("finish_request", key, result.model_dump(mode="json"), None)
    return await get_request(db, key)


async def get_run(db: Database, run: str) -> RunView:
    """A run, also before it has begun.

    Raises:
        NotFoundError: there is none, and none was requested.
    """
    try:
        return await RunViews(db).run(run)
    except NotFoundError:
        row = await db.row("get_request", start_key(run))
        if row is None or row["action"] != START:
            raise
        return _not_begun(await get_request(db, start_key(run)))


def _not_begun(asked: CommandView) -> RunView:
    file = requested_file(asked)
    refused = asked.refused is not None
    return RunView(
        run=asked.run,
        status=REFUSED if refused else REQUESTED,
        waiting_for=None if refused else asked.waiting_for or "an orchestrator that starts it",
        error=asked.refused,
        agent=file.agent,
        algorithm=file.algorithm.name,
        total_steps=file.steps or 0,
        created_at=asked.created_at,
        finished_at=asked.done_at if refused else None,
        file=file.model_dump(mode="json"),
        epoch=0,
        train_dataset="",
    )
