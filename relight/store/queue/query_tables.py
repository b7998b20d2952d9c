"""Filters, sorting and pages of the rollout store's queries, as SQL.

Only fixed fragments and numbers of parameters become SQL text; every value is a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relight.errors import InvalidRequestError
from relight.store.database import Database, translated
from relight.store.queue import cursors
from relight.store.queue.cursors import Order
from relight.types.queries import EQUALS, Condition, Query


@dataclass(frozen=True)
class Table:
    """What a query reads: its columns, which fields of an answer rows are found and sorted by, and in which order."""

    columns: str
    source: str
    """A table or a function; each `{}` is one of its parameters."""
    ties: tuple[str, ...]
    """The order of rows that are equal otherwise, and the default order."""
    fields: Mapping[str, str]
    """Column by field."""
    order: Order | None = None
    """That of pages by cursor."""


ROLLOUTS = Table(
    "attempted_json_v1(r, (select a from attempts a where a.rollout_id = r.rollout_id"
    " and a.sequence_id = r.attempts)) as row",
    "rollouts r",
    ("r.created_at", "r.rollout_id"),
    {
        **{name: f"r.{name}" for name in ("rollout_id", "mode", "resources_id", "status", "run", "step")},
        **{name: f"r.{name}" for name in ("failure_class", "reward")},
        "start_time": "r.created_at",
        "end_time": "r.ended_at",
    },
    cursors.ROLLOUTS,
)
ATTEMPTS = Table(
    "attempt_json_v1(a) as row",
    "attempts a",
    ("sequence_id",),
    {
        **{name: name for name in ("attempt_id", "rollout_id", "sequence_id", "status", "worker_id")},
        **{name: name for name in ("failure_class", "reward")},
        "start_time": "started_at",
        "end_time": "ended_at",
        "last_heartbeat_time": "last_heartbeat",
    },
)
RESOURCES = Table(
    "*",
    "resources",
    ("sequence",),
    {name: name for name in ("resources_id", "create_time", "update_time", "version")},
)
WORKERS = Table(
    "*",
    "reported_workers workers",
    ("started_at", "worker_id"),
    {
        "worker_id": "worker_id",
        "status": "status",
        "last_heartbeat_time": "heartbeat_at",
        "last_dequeue_time": "dequeued_at",
        "last_busy_time": "busy_at",
        "last_idle_time": "idle_at",
        "current_rollout_id": "workers.rollout_id",
        "current_attempt_id": "workers.attempt_id",
    },
)
SPANS = Table(
    "*",
    "rollout_spans_v1({}, {}) as spans",
    ("sequence_id", "start_time", "span_id"),
    {
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
    },
    cursors.SPANS,
)

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


CONDITIONS = {
    EQUALS: "{column} = {value}",
    "in": "{column} = any ({value}::text[])",
    "contains": "strpos({column}, {value}) > 0",
    "min": "{column} >= {value}",
    "max": "{column} <= {value}",
}


class Select:
    """A SELECT under construction: the rows of a table that a query asks for."""

    def __init__(self, table: Table, query: Query, *parameters: Any) -> None:
        self.table = table
        self.query = query
        self.values: list[Any] = []
        self._source = table.source.format(*map(self._parameter, parameters))
        self._conditions = [self._condition(condition) for condition in query.conditions(always=True)]
        if joined := [self._condition(condition) for condition in query.conditions(always=False)]:
            self._conditions.append("(" + f" {query.logic} ".join(joined) + ")")

    def must(self, condition: str, value: Any) -> None:
        """A condition that always holds; `{}` is its value."""
        self._conditions.append(condition.format(self._parameter(value)))

    def must_come_after(self, columns: Sequence[str], key: Sequence[Any]) -> None:
        """Only rows that come after this key, in the order of these columns."""
        placeholders = ", ".join(self._parameter(value) for value in key)
        sign = ">" if self.query.sort_order == "asc" else "<"
        self._conditions.append(f"({', '.join(columns)}) {sign} ({placeholders})")

    def _condition(self, condition: Condition) -> str:
        value = [str(item) for item in condition.value] if condition.test == "in" else condition.value
        column = self.table.fields[condition.field]
        return CONDITIONS[condition.test].format(column=column, value=self._parameter(value))

    def _parameter(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    @property
    def rows(self) -> str:
        """The rows, in the order asked for."""
        return f"select {self.table.columns} {self._found} {self._order}"

    @property
    def count(self) -> str:
        """How many rows there are."""
        return f"select count(*) {self._found}"

    @property
    def _found(self) -> str:
        where = "where " + " and ".join(self._conditions) if self._conditions else ""
        return f"from {self._source} {where}"

    @property
    def _order(self) -> str:
        """None comes first when it ascends and last when it descends."""
        order, by, ties = self.query.sort_order, self.query.sort_by, self.table.ties
        if self.query.after is not None and self.table.order:
            return "order by " + ", ".join(f"{column} {order}" for column in self.table.order.columns)
        if by is None:
            return "order by " + ", ".join(ties)
        column = column_of(self.table, by)
        nulls = "" if column in NEVER_NULL else " nulls first" if order == "asc" else " nulls last"
        return "order by " + ", ".join(
            [f"{column} {order}{nulls}", *(f"{tie} {order}" for tie in ties if tie != column)]
        )


def column_of(table: Table, sort_by: str) -> str:
    """The column that a field is sorted by.

    Raises:
        InvalidRequestError: there is no such field to sort by.
    """
    if sort_by not in table.fields:
        raise InvalidRequestError(
            f"sort_by: {sort_by!r} can't be sorted by; one of {', '.join(sorted(table.fields))} can"
        )
    return table.fields[sort_by]


def check_place(query: Query) -> None:
    """Check limit and offset of a page.

    Raises:
        InvalidRequestError: limit below -1, or offset below 0.
    """
    limit, offset = query.limit, query.offset
    if limit < -1 or offset < 0:
        raise InvalidRequestError(f"limit: {limit}, offset: {offset}; they are -1 (no limit) or more, and 0 or more")


async def page(database: Database, select: Select) -> tuple[Sequence[Any], int]:
    """The rows of a page by position, and how many there are without paging."""
    check_place(select.query)
    limit, offset = select.query.limit, select.query.offset
    text, counting = select.rows, select.count
    rows: Sequence[Any] = []
    async with translated(), database.pool.acquire() as connection:
        if limit != 0:
            cut = (f" limit {limit:d}" if limit > 0 else "") + (f" offset {offset:d}" if offset else "")
            rows = await connection.fetch(text + cut, *select.values)
        if limit == 0 or (offset and not rows) or len(rows) == limit:
            return rows, int(await connection.fetchval(counting, *select.values))
        return rows, offset + len(rows)


async def page_after(
    database: Database, select: Select, order: Order, key: Sequence[Any] | None, limit: int
) -> tuple[Sequence[Any], int]:
    """Rows after a key in its order, one more than `limit`; and how many match in all."""
    counting, counted = select.count, tuple(select.values)
    if key is not None:
        select.must_come_after(order.columns, order.stored(tuple(key)))
    async with translated(), database.pool.acquire() as connection:
        rows = await connection.fetch(f"{select.rows} limit {limit + 1:d}", *select.values)
        return rows, int(await connection.fetchval(counting, *counted))
