"""Commands over HTTP: `POST /v1/relight/runs` starts a run, `POST /v1/relight/runs/{run}/{action}` is any other.

Each takes the values of the update of the same name, and is stored before it is answered; an orchestrator executes it
(see `relight.operators.command_requests`). The request waits for the result for a while: 200 with the result, 409 if
the command was refused, 202 if it is still to be executed. Pause, stop and cancel are executed with the row, so they
need only Postgres.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from relight.errors import ConflictError, InvalidRequestError, NotFoundError
from relight.operators import command_requests
from relight.operators.start_requests import REFUSED, REQUESTED, cancel_request, get_run, request_start
from relight.store.database import Database
from relight.store.queue.idempotency_keys import refusal
from relight.store_api.grants import own_resources
from relight.types.commands import COMMANDS, Command, Fork, Replay, UpdateResources
from relight.types.names import CANCEL
from relight.types.run_file import parse_run_file
from relight.types.run_file_errors import describe
from relight.types.views import CommandView, RunView

T = TypeVar("T")
router = APIRouter(prefix="/v1/relight")
POLL_SECONDS = 0.1
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="The same request twice is one command."),
]


class StartRun(BaseModel):
    """A run to start."""

    model_config = ConfigDict(extra="forbid")

    name: str
    file: dict[str, Any]
    """The run file, as `relight schema` describes it."""
    actor: str = Field(default="operator", max_length=200)


@router.post("/runs", responses={202: {"model": RunView}}, tags=["runs"])
async def start_run(
    request: Request,
    response: Response,
    body: StartRun,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait until it has begun.")] = 10.0,
) -> RunView:
    """Start a run. The same name and file again is the same run, whatever its status is by then."""
    database: Database = request.app.state.database
    await request_start(database, body.name, parse_run_file(body.file), body.actor)
    run = await _poll(request, wait, lambda: get_run(database, body.name), lambda run: run.status != REQUESTED)
    if run.status == REFUSED:
        raise ConflictError(f"run {body.name} can't be started: {run.error}")
    response.status_code = 202 if run.status == REQUESTED else 200
    return run


@router.post("/runs/{run}/{action}", responses={202: {"model": CommandView}}, tags=["commands"])
async def give_command(
    request: Request,
    response: Response,
    run: str,
    action: Annotated[str, Path(description=f"One of {', '.join(COMMANDS)}.")],
    value: Annotated[dict[str, Any] | None, Body()] = None,
    key: Key = None,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait until it is done.")] = 10.0,
) -> CommandView:
    """Give a run a command."""
    database: Database = request.app.state.database
    if action not in COMMANDS:
        raise NotFoundError(f"there is no command {action!r}; there are {', '.join(COMMANDS)}")
    command = check(action, value or {})
    if isinstance(command, UpdateResources) and command.resources_id:
        await own_resources(request, command.resources_id)
    key = key or uuid.uuid4().hex
    if isinstance(command, Fork | Replay) and not command.name:
        command.name = f"{run[:40]}-{action}-{key[:8].lower()}"  # chosen now, so that a retry starts no second run
    asked = command.model_dump(mode="json", exclude_none=True)
    known = await _add(database, key, run, action, asked)
    if (known.run, known.action, known.value) != (run, action, asked):
        raise InvalidRequestError(refusal(key))
    done = await _poll(request, wait, lambda: command_requests.get_request(database, key), is_answered)
    if done.refused is not None:
        raise ConflictError(f"run {run} refused: {done.refused}")
    response.status_code = 200 if is_answered(done) else 202
    return done


async def _add(database: Database, key: str, run: str, action: str, value: dict[str, Any]) -> CommandView:
    try:
        return await command_requests.add_request(database, key, run, action, value)
    except NotFoundError:  # it may be one that has yet to begin
        if action != CANCEL:
            raise
        cancelled = await cancel_request(database, key, run, value)
        # Where there is no such request the run has begun meanwhile, or there is none.
        return cancelled or await command_requests.add_request(database, key, run, action, value)


@router.get("/commands/{command_id}", tags=["commands"])
async def read_command(request: Request, command_id: str) -> CommandView:
    """A command and its result."""
    return await command_requests.get_request(request.app.state.database, command_id)


def check(action: str, value: dict[str, Any]) -> Command:
    """The command, valid.

    Raises:
        InvalidRequestError: naming the key at fault.
    """
    try:
        return COMMANDS[action].model.model_validate(value)
    except ValidationError as error:
        raise InvalidRequestError(f"{action}: {describe(error)}") from error


def is_answered(command: CommandView) -> bool:
    """Whether the result of a command is known."""
    return command.done_at is not None or command.result is not None


async def _poll(request: Request, seconds: float, read: Callable[[], Awaitable[T]], is_done: Callable[[T], bool]) -> T:
    """Read it until it is done, the time is over, or the service stops."""
    deadline, ending = time.monotonic() + seconds, request.app.state.ending
    while True:
        found = await read()
        if is_done(found) or time.monotonic() >= deadline or ending.is_set():
            return found
        await asyncio.sleep(POLL_SECONDS)
