"""The newest events, read once for all readers in this process.

While there are readers, a task polls for new events a few times a second; announcing them by NOTIFY would serialize the
commits of all changes. They are kept in a ring buffer. A reader that is slower, or starts further back, reads from
Postgres, a few readers at a time. A reader has no queue: one that does not read takes a cursor and a page.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from relight.errors import RelightError
from relight.store.database import Database
from relight.store.events.log import (
    EVERYTHING,
    Event,
    EventCursor,
    EventsMissed,
    Snapshot,
    Wanted,
    cursor_now,
    read_page,
)

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
AWAY_SECONDS = 1.0
RING_EVENTS = 10_000
PAGE = 500
READERS = 2
"""How many readers may read from Postgres at once, so that connections are left for requests."""
Page = tuple[list[Event], EventCursor]


@dataclass(frozen=True, slots=True)
class TailRead:
    """The result of one poll: the events between two snapshots, by id."""

    seen: Snapshot
    window: Snapshot
    events: list[Event]


class EventTail:
    """The ring buffer and its waiting readers."""

    def __init__(
        self, database: Database, *, look_seconds: float = LOOK_SECONDS, ring_events: int = RING_EVENTS
    ) -> None:
        self.database = database
        self.look_seconds = look_seconds
        self.ring_events = ring_events
        self.reads = 0
        """Pages read from Postgres for single readers, since the start."""
        self._looks: deque[TailRead] = deque()
        self._first = 0
        """Number of the first poll in the ring."""
        self._numbers: dict[Snapshot, int] = {}
        """Polls by the snapshot that they began with."""
        self._held = 0
        self._end: Snapshot | None = None
        """The end of the last poll that found events; readers are there, too."""
        self._newest: Snapshot | None = None
        """The end of the last poll; there are no events between."""
        self._news = asyncio.Event()
        self._reading = asyncio.Semaphore(READERS)
        self._followers = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Keep the ring filled in the block."""
        self._followers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._followers -= 1

    async def aclose(self) -> None:
        """Stop polling."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def next_page(self, cursor: EventCursor, wanted: Wanted) -> Page:
        """The events after a cursor, and the cursor after them; waits until there are some.

        Raises:
            EventsMissed: some are no longer kept.
        """
        while True:
            news = self._news
            if self._is_ahead(cursor):
                await news.wait()
                continue
            found = self._from_ring(cursor, wanted)
            if found is not None:
                return found
            async with self._reading:
                self.reads += 1
                return await read_page(self.database, cursor, wanted, PAGE)

    def _is_ahead(self, cursor: EventCursor) -> bool:
        """Whether the cursor is ahead of the ring: then there is nothing to read yet."""
        return cursor.window is None and (self._end is None or cursor.seen.covers(self._end))

    def _from_ring(self, cursor: EventCursor, wanted: Wanted) -> Page | None:
        """The next page, if the ring holds it."""
        look = self._look_after(cursor.seen)
        if look is not None and cursor.window in (None, look.window):
            return _page(look.events, cursor, look.window, wanted)
        if not self._looks or not cursor.seen.covers(self._looks[0].seen):
            return None
        window, end = cursor.window or self._looks[-1].window, self._looks[-1].window
        if not window.covers(cursor.seen) or not end.covers(window):
            return None
        events = (event for found in self._looks for event in found.events)
        unseen = [event for event in events if window.sees(event.xid) and not cursor.seen.sees(event.xid)]
        return _page(sorted(unseen, key=lambda event: event.id), cursor, window, wanted)

    def _look_after(self, seen: Snapshot) -> TailRead | None:
        number = self._numbers.get(seen)
        return None if number is None else self._looks[number - self._first]

    async def _look(self) -> None:
        """Poll while there are readers."""
        while self._followers:
            try:
                await self._look_once()
                await asyncio.sleep(self.look_seconds)
            except EventsMissed:
                self._forget()
            except RelightError as error:
                log.warning("can't look for events: %s", error)
                await asyncio.sleep(AWAY_SECONDS)
            except Exception:
                # Any error must end the wait of the readers.
                log.exception("can't look for events")
                await asyncio.sleep(AWAY_SECONDS)
        self._forget()

    async def _look_once(self) -> None:
        if self._newest is None or self._end is None:
            self._begin((await cursor_now(self.database)).seen)
            return
        events, cursor = await read_page(self.database, EventCursor(self._newest), EVERYTHING, self.ring_events)
        if cursor.window is not None:  # more than the ring holds: readers read from Postgres until they are here
            self._forget()
            self._begin(cursor.window)
        elif events:
            self._keep(TailRead(self._end, cursor.seen, events))
        self._newest = cursor.window or cursor.seen

    def _begin(self, at: Snapshot) -> None:
        self._end = self._newest = at
        self._wake()

    def _keep(self, look: TailRead) -> None:
        self._numbers[look.seen] = self._first + len(self._looks)
        self._looks.append(look)
        self._end = look.window
        self._held += len(look.events)
        while self._held > self.ring_events and len(self._looks) > 1:
            gone = self._looks.popleft()
            del self._numbers[gone.seen]
            self._first += 1
            self._held -= len(gone.events)
        self._wake()

    def _forget(self) -> None:
        self._looks.clear()
        self._numbers.clear()
        self._first = self._held = 0
        self._end = self._newest = None

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _page(events: Iterable[Event], cursor: EventCursor, window: Snapshot, wanted: Wanted) -> Page:
    """A page of a window's events after a cursor."""
    page: list[Event] = []
    for event in events:
        if event.id > cursor.after and wanted.takes(event):
            page.append(event)
            if len(page) == PAGE:
                return page, EventCursor(cursor.seen, window, event.id)
    return page, EventCursor(window)


def cursor_at(before: EventCursor, after: EventCursor, event: Event) -> EventCursor:
    """The cursor after an event of a page between two cursors."""
    return EventCursor(before.seen, after.window or after.seen, event.id)
