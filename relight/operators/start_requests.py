"""Runs that were requested over HTTP: rows of `commands`, until an orchestrator has started them.

The request is acknowledged once its row is written, so the store service needs no Temporal, and the run is started once
even if processes die. A name identifies one run: the same name and file again is the same request. A run that could not
be started may be requested again.
"""

from __future__ import annotations

from typing import Any

from relight.errors import ConflictError, DatasetError, InvalidRequestError, NotFoundError
from relight.operators.command_requests import get_request
from relight.store.database import Connection, Database
from relight.store.datasets.named import find_stored
from relight.store.runs import views
from relight.store.runs.lifecycle import file_hash
from relight.types.names import CANCEL, RUN_NAME, START
from relight.types.payloads import ChangeResult
from relight.types.run_file import RunFile, differing_keys
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
    async with db.transaction() as connection:
        await _check_sets(db, connection, file)
        if await is_there(db, run, file, connection):
            return
        value = {"file": file.model_dump(mode="json", exclude_unset=True), "actor": actor}
        await db.execute("insert_request", start_key(run), run, START, value, actor, connection=connection)
        row = await db.row("lock_request", start_key(run), connection=connection)
        assert row is not None, "it was inserted, or was there"
        await _request_again(db, connection, CommandView.model_validate(dict(row)), value, file)


async def _check_sets(db: Database, connection: Connection, file: RunFile) -> None:
    sources = {key: source for key in ("train", "evaluation") if (source := getattr(file.data, key)) is not None}
    for key, source in sorted(sources.items(), key=lambda item: item[1]):  # names are locked in one order
        try:
            await find_stored(db, source, file.data.required_fields, connection)
        except DatasetError as error:
            raise InvalidRequestError(f"run file: data.{key}: {error.message}") from error


async def is_there(db: Database, run: str, file: RunFile, connection: Connection | None = None) -> bool:
    """Whether the run has begun.

    Raises:
        ConflictError: its name belongs to another file.
    """
    row = await db.row("get_run", run, connection=connection)
    if row is None:
        return False
    if file_hash(RunFile.model_validate(row["file"])) != file_hash(file):
        raise _name_conflict(run, "exists with", row["file"], file)
    return True


async def _request_again(
    db: Database, connection: Connection, known: CommandView, value: dict[str, Any], file: RunFile
) -> None:
    if known.action != START:
        raise ConflictError(f"name: {known.run!r} is not available: a command has the id {known.command_id}")
    if known.done_at is not None:  # refused, or its run is gone
        await db.execute("renew_request", known.command_id, value, value["actor"], connection=connection)
        return
    before = RunFile.model_validate(known.value["file"])
    if file_hash(before) != file_hash(file):
        raise _name_conflict(known.run, "is to be started with", before.model_dump(mode="json"), file)


def _name_conflict(run: str, how: str, before: dict[str, Any], file: RunFile) -> ConflictError:
    keys = ", ".join(differing_keys(before, file.model_dump(mode="json")))
    return ConflictError(f"run {run} {how} another run file (differing: {keys}); choose another name")


def mark_of(request: CommandView) -> str:
    """The id of a request in its workflow's memo; a run that is requested again has another."""
    return f"{request.command_id}@{request.created_at.isoformat()}"


async def cancel_request(db: Database, key: str, run: str, actor: str) -> CommandView | None:
    """Cancel a run that was requested and has not begun; None if there is no such request.

    A workflow that an orchestrator started for it meanwhile ends before it begins the run.
    """
    async with db.transaction() as connection:
        row = await db.row("lock_request", start_key(run), connection=connection)
        if row is not None and await db.row("get_request", key, connection=connection) is not None:
            return await get_request(db, key)  # the same key twice is one command
        if row is None or row["action"] != START or row["done_at"] is not None:
            return None
        if await db.row("get_run", run, connection=connection) is not None:  # it began while the request was locked
            return None
        await db.execute("finish_request", start_key(run), None, f"cancelled by {actor}", connection=connection)
        result = ChangeResult(accepted=True, before={"status": REQUESTED}, after={"run": run, "status": REFUSED})
        audit = (None, actor, CANCEL, result.before, result.after, None, None, f"update/{key}")
        await db.execute("insert_audit", run, *audit, connection=connection)
        await db.execute("insert_request", key, run, CANCEL, {"actor": actor}, actor, connection=connection)
        await db.execute("finish_request", key, result.model_dump(mode="json"), None, connection=connection)
    return await get_request(db, key)


async def get_run(db: Database, run: str) -> RunView:
    """A run, also before it has begun.

    Raises:
        NotFoundError: there is none, and none was requested.
    """
    try:
        return await views.get_run(db, run)
    except NotFoundError:
        row = await db.row("get_request", start_key(run))
        if row is None or row["action"] != START:
            raise
        return _not_begun(await get_request(db, start_key(run)))


def _not_begun(asked: CommandView) -> RunView:
    file = RunFile.model_validate(asked.value["file"])
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
