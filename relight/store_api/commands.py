"""Commands over HTTP: `POST /v1/relight/runs/{run}/{action}`, with the same values as the updates of the same names.

A command is a row before it is answered, and an orchestrator does it (`relight.store.requests` says why). The answer
waits a little for that: 200 with what came of it, 409 where it was refused, 202 where it is still to be done.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from relight.errors import ConflictError, InvalidRequestError, NotFoundError
from relight.store import requests
from relight.store.database import Database
from relight.types.commands import REQUESTS
from relight.types.run_file import describe
from relight.types.views import CommandView

router = APIRouter(prefix="/v1/relight", tags=["commands"])
LOOK_SECONDS = 0.1
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="The same key twice is one command."),
]
Wait = Annotated[float, Query(ge=0, le=30, description="Seconds to wait until it is done.")]


@router.post("/runs/{run}/{action}", responses={202: {"model": CommandView}})
async def command(
    request: Request,
    response: Response,
    run: str,
    action: Annotated[str, Path(description=f"One of {', '.join(REQUESTS)}.")],
    value: Annotated[dict[str, Any] | None, Body()] = None,
    key: Key = None,
    wait: Wait = 10.0,
) -> CommandView:
    """Tell a run something."""
    database: Database = request.app.state.database
    if action not in REQUESTS:
        raise NotFoundError(f"there is no command {action!r}; there are {', '.join(REQUESTS)}")
    checked = check(action, value or {})
    key = key or uuid.uuid4().hex
    if action in ("fork", "replay") and not checked.get("name"):
        checked["name"] = (
            f"{run[:40]}-{action}-{key[:8].lower()}"  # fixed now, so that a second try starts no second run
        )
    known = await requests.add_request(database, key, run, action, check(action, checked))
    if (known.run, known.action) != (run, action):
        raise ConflictError(f"Idempotency-Key {key!r} was used for {known.action} of run {known.run}")
    done = await _wait(database, known, wait, request.app.state.streams.ending)
    if done.refused is not None:
        raise ConflictError(f"run {run} refused: {done.refused}")
    response.status_code = 200 if done.done_at else 202
    return done


@router.get("/commands/{command_id}")
async def read_command(request: Request, command_id: str) -> CommandView:
    """A command and what came of it."""
    return await requests.get_request(request.app.state.database, command_id)


def check(action: str, value: dict[str, Any]) -> dict[str, Any]:
    """The command, valid.

    Raises:
        InvalidRequestError: naming the key at fault.
    """
    try:
        return REQUESTS[action].model_validate(value).model_dump(mode="json", exclude_none=True)
    except ValidationError as error:
        raise InvalidRequestError(f"{action}: {describe(error)}") from error


async def _wait(database: Database, known: CommandView, seconds: float, closing: asyncio.Event) -> CommandView:
    deadline = time.monotonic() + seconds
    while known.done_at is None and time.monotonic() < deadline and not closing.is_set():
        await asyncio.sleep(LOOK_SECONDS)
        known = await requests.get_request(database, known.command_id)
    return known
