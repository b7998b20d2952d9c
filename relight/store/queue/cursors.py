"""Cursors of the rollout store's queries: a page continues after the last row read, not at a position.

So rows that are added or removed meanwhile shift nothing. A cursor holds the key of the last row: of a rollout its
creation time (microseconds) and id, of a span its sequence id, attempt and id.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import orjson

from relight.errors import InvalidRequestError
from relight.types.queries import MAX_PAGE, Query
from relight.types.rollout import Rollout
from relight.types.tracer import Span

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Order:
    """The order of a query's rows with a cursor."""

    sorted_by: str
    kinds: tuple[type, ...]
    """Types of a key's parts."""
    key: Callable[[Any], Key]
    columns: tuple[str, ...]
    """A key's parts in Postgres."""
    stored: Callable[[Key], Key] = lambda key: key
    """A key as Postgres compares it."""

    def limit(self, query: Query) -> int:
        """How many rows a page holds.

        Raises:
            InvalidRequestError: the page is asked for by position, or in another order.
        """
        limit, offset, sort_by = query.limit, query.offset, query.sort_by
        if offset:
            raise InvalidRequestError(f"offset: {offset} can't be given with a cursor, which says where a page begins")
        if sort_by not in (None, self.sorted_by):
            raise InvalidRequestError(f"sort_by: {sort_by!r} is not {self.sorted_by!r}, by which a cursor pages")
        if limit == 0 or limit < -1:
            raise InvalidRequestError(f"limit: {limit} must be greater than 0 with a cursor, or -1 for {MAX_PAGE}")
        return MAX_PAGE if limit == -1 else min(limit, MAX_PAGE)

    def after(self, cursor: str) -> Key | None:
        """The key in a cursor; None for the empty one, with which paging begins.

        Raises:
            InvalidRequestError: it is invalid.
        """
        if not cursor:
            return None
        try:
            key = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        except ValueError:
            key = None
        if not _is_key(key, self.kinds):
            raise InvalidRequestError(
                f"cursor: {cursor[:100]!r} is invalid; use the `next` of the page before, or an empty one to begin"
            )
        return tuple(key)

    def following(self, found: Sequence[Any], limit: int) -> str | None:
        """The cursor of the next page, if one more row was found than the page has."""
        if len(found) <= limit:
            return None
        return urlsafe_b64encode(orjson.dumps(self.key(found[limit - 1]))).decode().rstrip("=")


def _stored_rollout_key(key: Key) -> Key:
    microseconds, rollout_id = key
    try:
        return EPOCH + timedelta(microseconds=microseconds), rollout_id
    except OverflowError as error:
        raise InvalidRequestError(f"cursor: {microseconds} is not a time; use the `next` of the page before") from error


def _rollout_key(rollout: Rollout) -> Key:
    return round(rollout.start_time * 1e6), rollout.rollout_id


def _span_key(span: Span) -> Key:
    return span.sequence_id, span.attempt_id, span.span_id


def _is_key(key: Any, kinds: tuple[type, ...]) -> TypeGuard[list[Any]]:
    return isinstance(key, list) and [type(part) for part in key] == list(kinds)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


ROLLOUTS = Order("start_time", (int, str), _rollout_key, ("r.created_at", "r.rollout_id"), _stored_rollout_key)
SPANS = Order("sequence_id", (int, str, str), _span_key, ("sequence_id", "attempt_id", "span_id"))
