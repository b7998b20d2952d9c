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
from relight.retrying import Backoff
from relight.store.database import Database
from relight.store.events.log import (
    EVERYTHING,
    EncodedEvent,
    EventCursor,
    EventsMissed,
    Snapshot,
    Wanted,
    cursor_now,
    read_page,
)

log = logging.getLogger(__name__)
POLL_SECONDS = 0.2
AWAY_SECONDS = 1.0
RING_EVENTS = 10_000
PAGE = 500
READERS = 2
"""How many readers may read from Postgres at once, so that connections are left for requests."""
Page = tuple[list[EncodedEvent], EventCursor]


@dataclass(frozen=True, slots=True)
class TailRead:
    """The result of one poll: the events between two snapshots, by id."""

    seen: Snapshot
    window: Snapshot
    events: list[EncodedEvent]


class EventTail:
    """The ring buffer and its waiting readers."""

    def __init__(
        self, database: Database, *, poll_seconds: float = POLL_SECONDS, ring_events: int = RING_EVENTS
    ) -> None:
        self.database = database
        self.poll_seconds = poll_seconds
        self.ring_events = ring_events
        self.reads = 0
        """Pages read from Postgres for single readers, since the start."""
        self._reads: deque[TailRead] = deque()
        self._first = 0
        """Number of the first poll in the ring."""
        self._numbers: dict[Snapshot, int] = {}
        """Polls by the snapshot that they began with."""
        self._held = 0
        self._end: Snapshot | None = None
        """The end of the last poll that found events; readers are there, too."""
        self._newest: Snapshot | None = None
        """The end of the last poll; there are no events between."""
        self._changed = asyncio.Event()
        self._reading = asyncio.Semaphore(READERS)
        self._followers = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Keep the ring filled in the block."""
        self._followers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
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
            changed = self._changed
            if self._is_ahead(cursor):
                await changed.wait()
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
        read = self._read_after(cursor.seen)
        if read is not None and cursor.window in (None, read.window):
            return _page(read.events, cursor, read.window, wanted)
        if not self._reads or not cursor.seen.covers(self._reads[0].seen):
            return None
        window, end = cursor.window or self._reads[-1].window, self._reads[-1].window
        if not window.covers(cursor.seen) or not end.covers(window):
            return None
        events = (event for found in self._reads for event in found.events)
        unseen = [event for event in events if window.sees(event.xid) and not cursor.seen.sees(event.xid)]
        return _page(sorted(unseen, key=lambda event: event.id), cursor, window, wanted)

    def _read_after(self, seen: Snapshot) -> TailRead | None:
        number = self._numbers.get(seen)
        return None if number is None else self._reads[number - self._first]

    async def _poll(self) -> None:
        """Poll while there are readers."""
        backoff = Backoff(self.poll_seconds, AWAY_SECONDS)
        async for _ in backoff:
            if not self._followers:
                break
            try:
                await self._poll_once()
                backoff.reset()
            except EventsMissed:
                self._forget()
            except Exception as error:  # after any error there may be events again
                log.warning("can't read events: %s", error, exc_info=not isinstance(error, RelightError))
        self._forget()

    async def _poll_once(self) -> None:
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

    def _keep(self, read: TailRead) -> None:
        self._numbers[read.seen] = self._first + len(self._reads)
        self._reads.append(read)
        self._end = read.window
        self._held += len(read.events)
        while self._held > self.ring_events and len(self._reads) > 1:
            gone = self._reads.popleft()
            del self._numbers[gone.seen]
            self._first += 1
            self._held -= len(gone.events)
        self._wake()

    def _forget(self) -> None:
        self._reads.clear()
        self._numbers.clear()
        self._first = self._held = 0
        self._end = self._newest = None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _page(events: Iterable[EncodedEvent], cursor: EventCursor, window: Snapshot, wanted: Wanted) -> Page:
    """A page of a window's events after a cursor."""
    page: list[EncodedEvent] = []
    for event in events:
        if event.id > cursor.after and wanted.takes(event):
            page.append(event)
            if len(page) == PAGE:
                return page, EventCursor(cursor.seen, window, event.id)
    return page, EventCursor(window)


def cursor_at(before: EventCursor, after: EventCursor, event: EncodedEvent) -> EventCursor:
    """The cursor after an event of a page between two cursors."""
    return EventCursor(before.seen, after.window or after.seen, event.id)
