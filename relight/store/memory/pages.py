"""Filters, order and pages of the in-memory store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from relight.store.queue.cursors import Order
from relight.store.queue.query_tables import Table, check_place, column_of
from relight.types.queries import Condition, Query
from relight.types.store import PaginatedResult

M = TypeVar("M", bound=BaseModel)


def find(rows: Iterable[M], query: Query, table: Table) -> PaginatedResult[M]:
    """Copies of the rows of a page, by the fields and in the orders that Postgres' table knows."""
    found = [row for row in rows if _matches(row, query)]
    if query.after is None or table.order is None:
        return _page(found, query, table)
    return _page_after(found, query, table.order, query.after)


def _matches(row: BaseModel, query: Query) -> bool:
    joined = [_holds(row, condition) for condition in query.conditions(always=False)]
    holds = all(joined) if query.logic == "and" or not joined else any(joined)
    return holds and all(_holds(row, condition) for condition in query.conditions(always=True))


def _holds(row: BaseModel, condition: Condition) -> bool:
    value, wanted = getattr(row, condition.field), condition.value
    match condition.test:
        case "in":
            return value in wanted
        case "contains":
            return wanted in (value or "")
        case "min":
            return value is not None and value >= wanted
        case "max":
            return value is not None and value <= wanted
        case _:
            return value == wanted


def _page(rows: Sequence[M], query: Query, table: Table) -> PaginatedResult[M]:
    check_place(query)
    by, limit, offset = query.sort_by, query.limit, query.offset
    if by is not None:
        column_of(table, by)
        rows = sorted(rows, key=lambda row: _key(getattr(row, by)), reverse=query.sort_order == "desc")
    end = None if limit < 0 else offset + limit
    items = [row.model_copy(deep=True) for row in rows[offset:end]]
    return PaginatedResult(items, limit=limit, offset=offset, total=len(rows))


def _page_after(rows: Sequence[M], query: Query, order: Order, cursor: str) -> PaginatedResult[M]:
    limit, after, up = order.limit(query), order.after(cursor), query.sort_order == "asc"
    ordered = sorted(rows, key=order.key, reverse=not up)
    if after is not None:
        ordered = [row for row in ordered if (order.key(row) > after if up else order.key(row) < after)]
    items = [row.model_copy(deep=True) for row in ordered[:limit]]
    following = order.following(ordered, limit)
    return PaginatedResult(items, limit=limit, offset=0, total=len(rows), following=following)


def _key(value: Any) -> tuple[bool, Any]:
    """None comes first when it ascends and last when it descends."""
    return (False, 0) if value is None else (True, value)
