"""Long polls: they end when their caller disconnects, and are refused with Retry-After when the service stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

from relight.errors import OverloadedError

Answer = TypeVar("Answer")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Await a long operation; None if the caller disconnects meanwhile.

    Raises:
        OverloadedError: the service stops first; any other answer would mean that the caller's time is over.
    """
    ended: asyncio.Event = request.app.state.ending
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_disconnected(request.receive))
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({task, gone, ending}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            return None
        raise OverloadedError("this service is shutting down; try again")
    finally:
        for job in (task, gone, ending):
            job.cancel()
        await asyncio.gather(task, gone, ending, return_exceptions=True)


async def until_disconnected(receive: Receive) -> None:
    """Wait until the caller disconnects. To be called once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
