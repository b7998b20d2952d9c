"""Span ingestion by group commit: concurrent requests are committed together and answered after the commit.

A group is one function call in one transaction. A span that Postgres refuses is found by halving the group, and only
this one fails; so does a span whose rollout or attempt is unknown. Independent of HTTP and OpenTelemetry.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, NamedTuple

from relight.errors import InvalidRequestError, NotFoundError
from relight.observability.metrics import SPANS
from relight.observability.redaction import Redactor
from relight.store.database import Database
from relight.store.group_commit import GroupCommit
from relight.store.spans.rows import SpanRow, row_of
from relight.types.tracer import Span

log = logging.getLogger(__name__)
MAX_GROUP = 2000
"""Spans in one transaction, unless one caller brings more."""
MIN_BESIDE = 100
"""From this number of spans a second transaction begins while one is under way: Postgres works while the other is
flushed.
"""
MAX_WAITING = 20_000
"""The maximum number of spans that wait for their commit; further requests get an OverloadedError."""
SEPARATOR, NOTHING = "\x1f", "\x1e"
"""Separators of a column's values, and the mark of a null; JSON contains neither."""
BODY_COLUMN = SpanRow._fields.index("bodies")


class SpanOutcome(NamedTuple):
    """The result for a span."""

    state: Literal["new", "duplicate", "unknown", "rejected"]
    sequence_id: int | None = None
    reason: str = ""


DUPLICATE = SpanOutcome("duplicate")


class SpanSink(ABC):
    """Stores rows of spans."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.redactor = redactor or Redactor()
        self.counts: Counter[str] = Counter()
        """Numbers of spans by result, since the start."""

    def count(self, states: Mapping[str, int]) -> None:
        """Count spans by result."""
        self.counts.update(states)
        for state, number in states.items():
            SPANS.labels(state).inc(number)

    @abstractmethod
    async def submit(self, rows: Sequence[SpanRow]) -> list[SpanOutcome]:
        """Store rows; returns the result of each, in order.

        Raises:
            OverloadedError: too many spans wait already.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Wait for what is under way."""


class SpanIngest(SpanSink):
    """Stores spans in Postgres; one object for each process is enough."""

    def __init__(
        self,
        database: Database,
        redactor: Redactor | None = None,
        *,
        max_group: int = MAX_GROUP,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        super().__init__(redactor)
        self.database = database
        self._group: GroupCommit[SpanRow, SpanOutcome] = GroupCommit(
            self._flush,
            max_group=max_group,
            max_waiting=max_waiting,
            max_writers=2,
            min_beside=MIN_BESIDE,
            name="spans",
        )

    async def add(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans; returns those that were new, with their sequence ids.

        A span that Postgres refuses, or of an unknown attempt, fails the call, but the others are stored; a span that
        can't be written as JSON fails it before any is stored.

        Raises:
            NotFoundError: a rollout or an attempt is unknown.
            InvalidRequestError: a span can't be stored.
            OverloadedError: too many spans wait already.
        """
        outcomes = await self.submit([row_of(span, self.redactor) for span in spans])
        for span, outcome in zip(spans, outcomes, strict=True):
            if outcome.state == "unknown":
                raise NotFoundError(f"there is no attempt {span.attempt_id} of a rollout {span.rollout_id}")
            if outcome.state == "rejected":
                raise InvalidRequestError(f"span {span.span_id} can't be stored: {outcome.reason}")
        return [
            span if span.sequence_id == outcome.sequence_id else _numbered(span, outcome)
            for span, outcome in zip(spans, outcomes, strict=True)
            if outcome.state == "new"
        ]

    async def submit(self, rows: Sequence[SpanRow]) -> list[SpanOutcome]:
        """Commit rows together with those of other callers."""
        return await self._group.submit(rows)

    async def aclose(self) -> None:
        """Wait for what is under way."""
        await self._group.aclose()

    async def _flush(self, rows: Sequence[SpanRow]) -> list[SpanOutcome]:
        seen: dict[tuple[str, str, str], int] = {}
        for number, row in enumerate(rows):
            seen.setdefault(row[:3], number)
        firsts = list(seen.values())
        outcomes = [DUPLICATE] * len(rows)
        found = await self._store([rows[number] for number in firsts])
        for number, outcome in zip(firsts, found, strict=True):
            outcomes[number] = outcome
        self.count(Counter(outcome.state for outcome in outcomes))
        return outcomes

    async def _store(self, rows: Sequence[SpanRow]) -> list[SpanOutcome]:
        try:
            return await self._call(rows)
        except InvalidRequestError as error:
            if len(rows) == 1:
                log.warning("span rejected rollout_id=%s reason=%s", rows[0].rollout_id, error.message)
                return [SpanOutcome("rejected", None, error.message)]
        middle = len(rows) // 2
        return await self._store(rows[:middle]) + await self._store(rows[middle:])

    async def _call(self, rows: Sequence[SpanRow]) -> list[SpanOutcome]:
        columns = list(zip(*rows, strict=True))
        bodies = [(item, *body) for item, kept in enumerate(columns[BODY_COLUMN], 1) for body in kept]
        items, hashes, packed = zip(*bodies, strict=True) if bodies else ((), (), ())
        separator, texts = joined(columns[:BODY_COLUMN])
        row = await self.database.one("ingest_spans", separator, *texts, items, hashes, packed)
        return [SpanOutcome(*verdict) for verdict in zip(row["verdicts"], row["sequences"], strict=True)]


def joined(columns: Iterable[Sequence[Any]]) -> tuple[str, list[str]]:
    """Each column as one text, and the separator of its values; the driver's arrays cost several times as much."""
    texts = [_texts(column) for column in columns]
    separator = SEPARATOR
    while True:
        found = [separator.join(column) for column in texts]
        if all(text.count(separator) == len(column) - 1 for text, column in zip(found, texts, strict=True)):
            return separator, found
        separator = token_hex(16)  # an id or a name has a control character


def _texts(column: Sequence[Any]) -> Sequence[str]:
    if None not in column and isinstance(column[0], str):
        return column
    return [NOTHING if value is None else str(value) for value in column]


def _numbered(span: Span, outcome: SpanOutcome) -> Span:
    return span.model_copy(update={"sequence_id": outcome.sequence_id})
