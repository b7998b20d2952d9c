"""Requests that wait: they end when their caller leaves, and are asked to come again when the service goes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from relight.errors import OverloadedError
from relight.store_api.events import Streams

Answer = TypeVar("Answer")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Do what takes long, unless the caller leaves meanwhile: then nobody reads the answer, and it is None.

    Raises:
        OverloadedError: the service ends first; any other answer would say that the caller's time is over.
    """
    streams: Streams = request.app.state.streams
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(request))
    ending = asyncio.ensure_future(streams.ending.wait())
    try:
        await asyncio.wait({task, gone, ending}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            return None
        raise OverloadedError("this service ends; ask again")
    finally:
        for job in (task, gone, ending):
            job.cancel()
        await asyncio.gather(task, gone, ending, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
