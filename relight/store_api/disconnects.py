"""Long polls: they end when their caller disconnects, and are refused with Retry-After when the service stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

from relight.errors import OverloadedError
from relight.retrying import in_background

Answer = TypeVar("Answer")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Await a long operation; None if the caller disconnects meanwhile.

    Raises:
        OverloadedError: the service stops first; any other answer would mean that the caller's time is over.
    """
    ended: asyncio.Event = request.app.state.ending
    async with in_background(work) as (task,), in_background(until_disconnected(request.receive), ended.wait()) as ends:
        await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if ends[0].done():
            return None
        raise OverloadedError("this service is shutting down; try again")


async def until_disconnected(receive: Receive) -> None:
    """Wait until the caller disconnects. To be called once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
