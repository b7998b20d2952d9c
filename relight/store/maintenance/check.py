"""Checks the invariants of the store: SQL queries that return no row if the invariant holds.

The queries are those of `sql/check_*.sql`, by name; the comment under a name states the invariant. They read one
snapshot, so the store may be in use. Nothing is repaired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relight.errors import PostgresError
from relight.store.database import (
    Connection,
    Database,
    applied_migrations,
    migrations,
    queries,
    require_known,
    translated,
)

PREFIX = "check_"
MAX_ROWS = 20
"""The maximum number of rows in a violation."""
TIMEOUT_SECONDS = 3600.0
"""The limit of one query, which may read many millions of rows."""


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold."""

    invariant: str
    says: str
    """The rule, in a sentence."""
    rows: list[dict[str, Any]]
    """The first rows that break it."""
    more: bool
    """Whether there are more rows."""


def invariants() -> dict[str, str]:
    """Each invariant's query, by its name without the prefix."""
    return {name.removeprefix(PREFIX): text for name, text in queries().items() if name.startswith(PREFIX)}


def head_comment(query: str) -> str:
    """The comment at the head of a query."""
    lines: list[str] = []
    for line in query.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines)


async def check_store(database: Database) -> list[Violation]:
    """The invariants that do not hold, in one snapshot; nothing is locked or written.

    Raises:
        PostgresError: the schema is older than these queries.
        ConfigError: the database is of a release before 0.1 or of a newer one.
    """
    async with (
        translated(),
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await _require_schema(connection)
        return await check_on(connection)


async def _require_schema(connection: Connection) -> None:
    applied = await applied_migrations(connection)
    require_known(applied)
    wanted, there = migrations()[-1][0], max(applied, default=0)
    if there < wanted:
        raise PostgresError(
            f"the schema is version {there}, and this Relight checks version {wanted}; "
            "start `relight store` once to migrate it"
        )


async def check_on(connection: Connection) -> list[Violation]:
    """The same in the transaction of a given connection."""
    found = [await _violation(connection, name, query) for name, query in invariants().items()]
    return [violation for violation in found if violation is not None]


async def _violation(connection: Connection, name: str, query: str) -> Violation | None:
    limited = f"select * from (\n{query}\n) as broken limit {MAX_ROWS + 1}"
    rows = await connection.fetch(limited, timeout=TIMEOUT_SECONDS)
    if not rows:
        return None
    return Violation(name, head_comment(query), [dict(row) for row in rows[:MAX_ROWS]], len(rows) > MAX_ROWS)
