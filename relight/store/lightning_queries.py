"""Filters, sorting and pages of the rollout store's queries, as SQL.

Only fixed fragments and numbers of parameters become SQL text; every value is a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relight.errors import InvalidRequestError
from relight.store.database import Database, translated
from relight.types.store import FilterLogic, SortOrder

ROLLOUT_SORTS = {
    name: f"r.{column}"
    for name, column in {
        "rollout_id": "rollout_id",
        "start_time": "created_at",
        "end_time": "ended_at",
        "mode": "mode",
        "resources_id": "resources_id",
        "status": "status",
        "run": "run",
        "step": "step",
        "failure_class": "failure_class",
        "reward": "reward",
    }.items()
}
ATTEMPT_SORTS = {
    "attempt_id": "attempt_id",
    "rollout_id": "rollout_id",
    "sequence_id": "sequence_id",
    "start_time": "started_at",
    "end_time": "ended_at",
    "status": "status",
    "worker_id": "worker_id",
    "last_heartbeat_time": "last_heartbeat",
    "failure_class": "failure_class",
    "reward": "reward",
}
RESOURCES_SORTS = {name: name for name in ("resources_id", "create_time", "update_time", "version")}
WORKER_SORTS = {
    "worker_id": "worker_id",
    "status": "status",
    "last_heartbeat_time": "heartbeat_at",
    "last_dequeue_time": "dequeued_at",
    "last_busy_time": "busy_at",
    "last_idle_time": "idle_at",
    "current_rollout_id": "workers.rollout_id",
    "current_attempt_id": "workers.attempt_id",
}
SPAN_SORTS = {
    name: name
    for name in (
        "rollout_id",
        "attempt_id",
        "sequence_id",
        "trace_id",
        "span_id",
        "parent_id",
        "name",
        "start_time",
        "end_time",
    )
}

NEVER_NULL = frozenset(
    {
        "r.rollout_id",
        "r.created_at",
        "r.status",
        "rollout_id",
        "attempt_id",
        "sequence_id",
        "started_at",
        "status",
        "create_time",
        "update_time",
        "version",
        "span_id",
        "trace_id",
        "name",
    }
)
"""Columns without nulls wherever they are sorted by: their indexes can be read in order, both ways."""


@dataclass
class Query:
    """One query under construction."""

    columns: str
    source: str
    order: tuple[str, ...]
    """What breaks ties, and orders where nothing else is asked for."""
    musts: list[str] = field(default_factory=list[str])
    filters: list[str] = field(default_factory=list[str])
    values: list[Any] = field(default_factory=list[Any])

    def must(self, condition: str, value: Any) -> None:
        """A condition that always holds; `{}` is its value. None: it is not asked for."""
        if value is not None:
            self.musts.append(self._filled(condition, value))

    def filter(self, condition: str, value: Any) -> None:
        """A condition that is joined with the others by the logic asked for."""
        if value is not None:
            self.filters.append(self._filled(condition, value))

    def filter_text(self, column: str, exact: str | None, contains: str | None) -> None:
        """A column's text, or a part of it."""
        self.filter(f"{column} = {{}}", exact)
        self.filter(f"strpos({column}, {{}}) > 0", contains)

    def _filled(self, condition: str, value: Any) -> str:
        self.values.append(value)
        return condition.format(f"${len(self.values)}")

    def where(self, logic: FilterLogic) -> str:
        """The WHERE clause."""
        if logic not in ("and", "or"):
            raise InvalidRequestError(f"filter_logic: {logic!r} is neither 'and' nor 'or'")
        conditions = list(self.musts)
        if self.filters:
            conditions.append("(" + f" {logic} ".join(self.filters) + ")")
        return "where " + " and ".join(conditions) if conditions else ""


def sort_clause(sorts: Mapping[str, str], sort_by: str | None, order: SortOrder, ties: Sequence[str]) -> str:
    """The ORDER BY clause; None comes first when it ascends and last when it descends.

    Raises:
        InvalidRequestError: there is no such field to sort by, or no such order.
    """
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"sort_order: {order!r} is neither 'asc' nor 'desc'")
    if sort_by is None:
        return "order by " + ", ".join(ties)
    if sort_by not in sorts:
        raise InvalidRequestError(f"sort_by: {sort_by!r} can't be sorted by; one of {', '.join(sorted(sorts))} can")
    column = sorts[sort_by]
    nulls = "" if column in NEVER_NULL else " nulls first" if order == "asc" else " nulls last"
    return "order by " + ", ".join([f"{column} {order}{nulls}", *(f"{tie} {order}" for tie in ties if tie != column)])


async def page(
    database: Database,
    query: Query,
    sorts: Mapping[str, str],
    *,
    logic: FilterLogic,
    sort_by: str | None,
    sort_order: SortOrder,
    limit: int,
    offset: int,
) -> tuple[Sequence[Any], int]:
    """The rows of a page, and how many there are without paging.

    Raises:
        InvalidRequestError: limit below -1, offset below 0, or nothing to sort by.
    """
    if limit < -1 or offset < 0:
        raise InvalidRequestError(f"limit: {limit}, offset: {offset}; they are -1 (no limit) or more, and 0 or more")
    where = query.where(logic)
    order = sort_clause(sorts, sort_by, sort_order, query.order)
    rows: Sequence[Any] = []
    async with translated(), database.pool.acquire() as connection:
        if limit != 0:
            cut = (f" limit {limit:d}" if limit > 0 else "") + (f" offset {offset:d}" if offset else "")
            text = f"select {query.columns} from {query.source} {where} {order}{cut}"
            rows = await connection.fetch(text, *query.values)
        if limit in (-1, 0) or (offset and not rows) or len(rows) == limit:
            if limit == -1 and (rows or not offset):
                return rows, offset + len(rows)
            counted = await connection.fetchval(f"select count(*) from {query.source} {where}", *query.values)
            return rows, int(counted)
        return rows, offset + len(rows)
