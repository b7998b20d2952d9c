"""Filters, order and pages of the in-memory store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from relight.errors import InvalidRequestError
from relight.types.rollout import Attempt, Rollout
from relight.types.store import FilterLogic, PaginatedResult, ResourcesUpdate, SortOrder, Span, Worker

M = TypeVar("M", bound=BaseModel)
Test = Callable[[Any], bool]
ROLLOUT_SORTS: Final = frozenset(Rollout.model_fields) - {"input", "config", "metadata"}
ATTEMPT_SORTS: Final = frozenset(Attempt.model_fields) - {"metadata", "error"}
RESOURCES_SORTS: Final = frozenset(ResourcesUpdate.model_fields) - {"resources"}
WORKER_SORTS: Final = frozenset(Worker.model_fields) - {"heartbeat_stats"}
SPAN_SORTS: Final = frozenset(Span.model_fields) - frozenset(
    ("status", "attributes", "events", "links", "context", "parent", "resource")
)


def equals(field: str, value: object) -> list[Test]:
    """A test of a field, or none where nothing is asked for."""
    return [] if value is None else [lambda row: getattr(row, field) == value]


def contains(field: str, text: str | None) -> list[Test]:
    """A test for a part of a field's text."""
    return [] if text is None else [lambda row: text in (getattr(row, field) or "")]


def one_of(field: str, values: Sequence[Any] | None) -> list[Test]:
    """A test for some values of a field."""
    return [] if values is None else [lambda row: getattr(row, field) in values]


def between(field: str, low: float | None, high: float | None) -> list[Test]:
    """Tests of a number; a missing one is nowhere."""
    tests: list[Test] = []
    if low is not None:
        tests.append(lambda row: getattr(row, field) is not None and getattr(row, field) >= low)
    if high is not None:
        tests.append(lambda row: getattr(row, field) is not None and getattr(row, field) <= high)
    return tests


def matching(rows: Iterable[M], tests: Sequence[Test], logic: FilterLogic, must: Sequence[Test] = ()) -> list[M]:
    """Rows that pass all tests (or any one of them), and all of `must`.

    Raises:
        InvalidRequestError: there is no such logic.
    """
    if logic not in ("and", "or"):
        raise InvalidRequestError(f"filter_logic: {logic!r} is neither 'and' nor 'or'")
    join = all if logic == "and" or not tests else any
    return [row for row in rows if all(test(row) for test in must) and join(test(row) for test in tests)]


def page(
    rows: Sequence[M], sorts: frozenset[str], sort_by: str | None, sort_order: SortOrder, limit: int, offset: int
) -> PaginatedResult[M]:
    """Copies of the rows of a page. None comes first when it ascends and last when it descends.

    Raises:
        InvalidRequestError: limit below -1, offset below 0, or nothing to sort by.
    """
    if limit < -1 or offset < 0:
        raise InvalidRequestError(f"limit: {limit}, offset: {offset}; they are -1 (no limit) or more, and 0 or more")
    if sort_order not in ("asc", "desc"):
        raise InvalidRequestError(f"sort_order: {sort_order!r} is neither 'asc' nor 'desc'")
    if sort_by is not None and sort_by not in sorts:
        raise InvalidRequestError(f"sort_by: {sort_by!r} can't be sorted by; one of {', '.join(sorted(sorts))} can")
    if sort_by is not None:
        rows = sorted(rows, key=lambda row: _key(getattr(row, sort_by)), reverse=sort_order == "desc")
    end = None if limit < 0 else offset + limit
    items = [row.model_copy(deep=True) for row in rows[offset:end]]
    return PaginatedResult(items, limit=limit, offset=offset, total=len(rows))


def _key(value: Any) -> tuple[bool, Any]:
    return (False, 0) if value is None else (True, value)
