"""The rollout store's queries: the rows that are asked for, as what users know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from relight.store.database import Database
from relight.store.queue import query_tables as sql
from relight.store.queue.query_tables import Select
from relight.store.spans.reads import read_spans
from relight.types.queries import SpanQuery
from relight.types.store import PaginatedResult
from relight.types.tracer import Span

T = TypeVar("T")
Read = Callable[[Sequence[Any]], Awaitable[list[T]]]


async def query_spans(database: Database, query: SpanQuery) -> PaginatedResult[Span]:
    """Spans of a rollout or of one of its attempts, its model calls among them."""
    select = Select(sql.SPANS, query, query.rollout_id, query.attempt_id)
    return await _found(database, select, lambda found: read_spans(database, found))


async def find(database: Database, select: Select, convert: Callable[[Any], T]) -> PaginatedResult[T]:
    """A page of rows, each converted."""

    async def read(found: Sequence[Any]) -> list[T]:
        return [convert(row) for row in found]

    return await _found(database, select, read)


async def _found(database: Database, select: Select, read: Read[T]) -> PaginatedResult[T]:
    query, order = select.query, select.table.order
    if query.after is None or order is None:
        found, total = await sql.page(database, select)
        return PaginatedResult(await read(found), limit=query.limit, offset=query.offset, total=total)
    limit = order.limit(query)
    found, total = await sql.page_after(database, select, order, order.after(query.after), limit)
    items = await read(found)
    following = order.following(items, limit)
    return PaginatedResult(items[:limit], limit=limit, offset=0, total=total, following=following)
