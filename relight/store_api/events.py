"""Streams changes as server-sent events.

A stream begins after `Last-Event-ID` (or `after`, or `since`), else with the present. Every event has the cursor to
continue from; so has the comment that is sent while nothing happens, so that the cursor of a reader of rare events
stays recent. Streams end when the service stops, when their token ends, and when their reader does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relight.errors import InvalidRequestError, OverloadedError, PostgresError
from relight.retrying import in_background
from relight.store.database import Database
from relight.store.events.log import (
    EncodedEvent,
    EventCursor,
    EventsMissed,
    Wanted,
    cursor_now,
    cursor_since,
    read_page,
)
from relight.store.events.tail import EventTail, Page, cursor_at
from relight.store.runs.views import RunViews
from relight.store_api.disconnects import until_disconnected
from relight.store_api.grants import Grants, own_run
from relight.types.events import EventKind

router = APIRouter(prefix="/v1/relight", tags=["views"])
MAX_STREAMS = 1000
"""Streams at once in one service; more get 503."""
STALLED_SECONDS = 60.0
"""A reader that has read nothing for this time is disconnected; it may reconnect with its cursor."""
AWAY_SECONDS = 1.0
END_SECONDS = 1.0
RETRY = b"retry: 2000\n"
RESET = b'event: reset\ndata: {"kind":"reset"}\n'
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream"

Kinds = Annotated[list[EventKind] | None, Query(description="Of these kinds alone; may be given several times.")]
After = Annotated[str | None, Query(description="A cursor; a Last-Event-ID is one, and wins.")]
Since = Annotated[datetime | None, Query(description="Or from a time on: ISO 8601, or seconds since 1970.")]
Follow = Annotated[bool, Query(description="False: end with what there is now.")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID")]


class Streams:
    """All streams of this process."""

    beat_seconds = 15.0

    def __init__(self, database: Database, ending: asyncio.Event, *, max_streams: int = MAX_STREAMS) -> None:
        self.database = database
        self.tail = EventTail(database)
        self.max_streams = max_streams
        self.open = 0
        self.ending = ending
        """Set when the service stops, which ends its streams."""

    async def start(self, after: str | None, since: datetime | None) -> tuple[EventCursor, bool]:
        """The cursor at which a stream begins, and whether its first events are no longer kept."""
        if not after and since:
            return await cursor_since(self.database, since if since.tzinfo else since.replace(tzinfo=UTC))
        wanted = EventCursor.parse(after) if after else None
        now = await cursor_now(self.database)
        if wanted is None:
            return now, False
        # A cursor from the future is that of another server, whose backup was restored here.
        strange = not now.seen.covers(wanted.window or wanted.seen)
        return (now, True) if strange else (wanted, False)


class EventStream(Response):
    """One stream."""

    media_type = MEDIA_TYPE

    def __init__(
        self, streams: Streams, grants: Grants, cursor: EventCursor, wanted: Wanted, *, missed: bool, follow: bool
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._streams = streams
        self._grants = grants
        self._cursor = cursor
        self._wanted = wanted
        self._missed = missed
        self._follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader disconnects, its token ends, the service stops, or no more can come."""
        self._streams.open += 1
        ends = (until_disconnected(receive), self._streams.ending.wait(), self._grants.ended(scope))
        try:
            async with in_background(self._send_events(send), *ends) as tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if tasks[0].done():
                    tasks[0].result()
        finally:
            self._streams.open -= 1
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(END_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with suppress(TimeoutError):
            async for part in self._parts():
                async with asyncio.timeout(STALLED_SECONDS):
                    await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _parts(self) -> AsyncGenerator[bytes]:
        yield RETRY + (RESET if self._missed else b"") + _id(self._cursor)
        if not self._follow:
            async for part in self._rest():
                yield part
            return
        async with self._streams.tail.followed():
            while True:
                yield await self._next()

    async def _rest(self) -> AsyncGenerator[bytes]:
        """The events that are there now."""
        try:
            now = (await cursor_now(self._streams.database)).seen
            while self._cursor.window or not self._cursor.seen.covers(now):
                page = await read_page(self._streams.database, self._cursor, self._wanted)
                yield self._written(page)
        except EventsMissed:
            yield await self._begin_anew()

    async def _next(self) -> bytes:
        """The next events; a comment if there are none."""
        try:
            async with asyncio.timeout(self._streams.beat_seconds):
                return self._written(await self._streams.tail.next_page(self._cursor, self._wanted))
        except EventsMissed:
            return await self._begin_anew()
        except TimeoutError:
            return b": nothing new\n" + _id(self._cursor)
        except PostgresError:
            await asyncio.sleep(AWAY_SECONDS)
            return b": Postgres is away\n" + _id(self._cursor)

    async def _begin_anew(self) -> bytes:
        with suppress(PostgresError):  # the missing events are then detected again
            self._cursor = await cursor_now(self._streams.database)
            return RESET + _id(self._cursor)
        return b""

    def _written(self, page: Page) -> bytes:
        before, (events, self._cursor) = self._cursor, page
        if not events:
            return b""
        last = len(events) - 1
        cursors = (
            self._cursor if n == last else cursor_at(before, self._cursor, event) for n, event in enumerate(events)
        )
        return b"".join(_frame(event, cursor) for event, cursor in zip(events, cursors, strict=True))


def _frame(event: EncodedEvent, cursor: EventCursor) -> bytes:
    return b"event: %s\ndata: %s\n" % (event.kind.encode(), event.json) + _id(cursor)


def _id(cursor: EventCursor) -> bytes:
    return f"id: {cursor}\n\n".encode()


async def _stream(
    request: Request, wanted: Wanted, after: str | None, since: datetime | None, follow: bool
) -> EventStream:
    streams: Streams = request.app.state.streams
    if streams.open >= streams.max_streams:
        raise OverloadedError(f"this service has {streams.open} streams of events already; try again shortly")
    cursor, missed = await streams.start(after, since)
    return EventStream(streams, request.app.state.grants, cursor, wanted, missed=missed, follow=follow)


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {}}, "description": "Server-sent events, until the reader leaves."}
}


@router.get("/events", response_class=Response, responses=RESPONSES)
async def read_events(
    request: Request,
    run: str | None = None,
    rollout: str | None = None,
    kind: Kinds = None,
    after: After = None,
    since: Since = None,
    follow: Follow = True,
    last_event_id: LastId = None,
) -> EventStream:
    """Changes of all runs and rollouts, of one run or of one rollout."""
    wanted = Wanted(_storable(own_run(request, run)), _storable(rollout), frozenset(kind) if kind else None)
    return await _stream(request, wanted, last_event_id or after, since, follow)


@router.get("/runs/{run}/events", response_class=Response, responses=RESPONSES)
async def read_run_events(
    request: Request,
    run: str,
    kind: Kinds = None,
    after: After = None,
    since: Since = None,
    follow: Follow = True,
    last_event_id: LastId = None,
) -> EventStream:
    """Changes of a run."""
    await RunViews(request.app.state.database).run(run)
    wanted = Wanted(run, None, frozenset(kind) if kind else None)
    return await _stream(request, wanted, last_event_id or after, since, follow)


def _storable(name: str | None) -> str | None:
    """Check a name in a query.

    Raises:
        InvalidRequestError: it has characters that no name has.
    """
    if name is not None and "\0" in name:
        raise InvalidRequestError(f"a name without NUL characters is needed; given {name!r}")
    return name
