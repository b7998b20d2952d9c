"""The log of changes, in an order that misses none, even if transactions commit in another order than they began.

A reader proceeds from one Postgres snapshot to the next: a window holds the events that the newer snapshot sees and the
older one does not, by id. A cursor is a position: all that a snapshot sees, or a window and the last id read in it.
Readers keep their cursors; the store keeps none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import orjson

from relight.errors import InvalidRequestError
from relight.store.database import Database

SNAPSHOT = re.compile(r"(\d{1,19}):(\d{1,19}):((?:\d{1,19}(?:,\d{1,19})*)?)")
MAX_CURSOR_CHARACTERS = 65_536
LARGEST = 2**63 - 1
KEEP_SECONDS = 24 * 3600.0
KEEP_EVENTS = 1_000_000
"""About 400 MB."""
DROP_EVENTS = 10_000
"""In one transaction."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that have ended: those below `xmin`, and those below `xmax` that are not in `running`."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Postgres' text form.

        Raises:
            ValueError: it is invalid.
        """
        match = SNAPSHOT.fullmatch(text)
        if match is None:
            raise ValueError(text)
        running = tuple(int(number) for number in match[3].split(",") if number)
        found = cls(int(match[1]), int(match[2]), running)
        in_order = [found.xmin, *running, found.xmax]
        if not 0 < found.xmin <= found.xmax <= LARGEST or in_order != sorted(in_order) or found.xmax in running:
            raise ValueError(text)
        return found

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def sees(self, xid: int) -> bool:
        """Whether a transaction had ended."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def covers(self, other: Snapshot) -> bool:
        """Whether it sees all that the other sees."""
        return self.xmax >= other.xmax and not any(other.sees(xid) for xid in self.running)


BEGINNING = Snapshot(1, 1)
"""Sees nothing."""


@dataclass(frozen=True, slots=True)
class EventCursor:
    """A reader's position."""

    seen: Snapshot
    """The events that this snapshot sees were read."""
    window: Snapshot | None = None
    """Of the further events that this snapshot sees, those up to and including `after` were read."""
    after: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a cursor that a reader got with an event.

        Raises:
            InvalidRequestError: it is not one.
        """
        seen, *window = text.strip().split("~")
        try:
            if len(text) > MAX_CURSOR_CHARACTERS or len(window) not in (0, 2):
                raise ValueError(text)
            if not window:
                return cls(Snapshot.parse(seen))
            after = int(window[1])
            if not 0 <= after <= LARGEST:
                raise ValueError(text)
            return cls(Snapshot.parse(seen), Snapshot.parse(window[0]), after)
        except ValueError:
            raise InvalidRequestError(
                f"after: an event's cursor is needed, as it came with the event; given {text[:100]!r}"
            ) from None

    def __str__(self) -> str:
        return str(self.seen) if self.window is None else f"{self.seen}~{self.window}~{self.after}"


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """One change, encoded once for all readers."""

    id: int
    xid: int
    kind: str
    run: str | None
    rollout_id: str | None
    json: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a reader wants; None: all."""

    run: str | None = None
    rollout_id: str | None = None
    kinds: frozenset[str] | None = None

    def takes(self, event: EncodedEvent) -> bool:
        """Whether it is one of them."""
        return (
            (self.run is None or event.run == self.run)
            and (self.rollout_id is None or event.rollout_id == self.rollout_id)
            and (self.kinds is None or event.kind in self.kinds)
        )


EVERYTHING = Wanted()


class EventsMissed(Exception):
    """Some of what a reader has not seen is no longer kept."""


async def cursor_now(database: Database) -> EventCursor:
    """A cursor after all events so far."""
    return EventCursor(Snapshot.parse(await database.value("events_now")))


async def cursor_since(database: Database, at: datetime) -> tuple[EventCursor, bool]:
    """A cursor at a time, and whether some events since then are no longer kept."""
    window = Snapshot.parse(await database.value("events_now"))
    row = await database.one("events_since", at)
    return EventCursor(BEGINNING, window, row["after"]), bool(row["missed"])


async def read_page(
    database: Database, cursor: EventCursor, wanted: Wanted = EVERYTHING, limit: int = 500
) -> tuple[list[EncodedEvent], EventCursor]:
    """The next events of a cursor's window (up to now if it has none), and the cursor after them.

    Raises:
        EventsMissed: some are no longer kept.
    """
    seen, window, after = str(cursor.seen), cursor.window, cursor.after
    if window is None:
        row = await database.one("open_events", seen)
        window, after = Snapshot.parse(row["sees"]), LARGEST if row["first"] is None else row["first"] - 1
    events: list[EncodedEvent] = []
    if after < LARGEST:
        kinds = None if wanted.kinds is None else sorted(wanted.kinds)
        bounds = (seen, str(window), after, limit)
        found = await database.fetch("read_events", *bounds, wanted.run, wanted.rollout_id, kinds)
        events = [event_of(row) for row in found]
    # Afterwards, since what is dropped meanwhile would be missed unseen.
    if await database.value("events_missed", seen, cursor.after):
        raise EventsMissed
    return events, EventCursor(window) if len(events) < limit else EventCursor(cursor.seen, window, events[-1].id)


def event_of(row: Any) -> EncodedEvent:
    """An event in the form of the streams."""
    names = ("id", "kind", "time", "run", "rollout_id", "attempt_id", "step", "data")
    content = orjson.dumps({name: row[name] for name in names})
    return EncodedEvent(row["id"], row["xid"], row["kind"], row["run"], row["rollout_id"], content)


async def drop_events(database: Database, *, keep_events: int = KEEP_EVENTS) -> int:
    """Drop the oldest events, a limited number in each transaction; returns how many were dropped."""
    dropped = 0
    while True:
        some = int(await database.value("drop_events", KEEP_SECONDS, keep_events, DROP_EVENTS))
        dropped += some
        if some < DROP_EVENTS:
            return dropped
