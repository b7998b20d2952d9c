"""Retention: drops whole days of spans, model calls and bodies by age and size.

A row belongs to the day on which its rollout was created. Rollouts, attempts, rewards, steps and the ledger are kept,
and so are today and days that an open rollout or an open step of an unfinished run needs. A day is dropped in one
transaction with all its tables: bodies are shared only by calls of the same day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from pydantic import ByteSize, TypeAdapter, ValidationError

from relight.errors import ConfigError, PostgresError
from relight.store.database import Database, Transaction
from relight.store.maintenance.partitions import lock_partitions

NEXT_DAY = "select min(day) from {table} where $1::date is null or day > $1"


@dataclass(frozen=True)
class RetentionPolicy:
    """Limits of what is kept; None: no limit."""

    days: int | None = None
    """The number of days before today."""
    size_bytes: int | None = None
    """The size of all spans, model calls and bodies, with their indexes."""


@dataclass
class Day:
    """What the store holds of one day."""

    day: date
    size_bytes: int = 0
    """The size of its own tables; rows in a default partition are not included."""
    tables: list[str] = field(default_factory=list[str])
    strays: list[str] = field(default_factory=list[str])
    """Default partitions that have rows of this day."""
    action: Literal["kept", "dropped"] = "kept"
    reason: str = ""


def parse_days(text: str) -> int:
    """Days of `30d`, `4w` or `30`.

    Raises:
        ConfigError: it is none of these.
    """
    match = re.fullmatch(r"(\d+)\s*([dw]?)", text.strip().lower())
    if match is None or not int(match[1]):
        raise ConfigError(f"an age in days or weeks is needed, such as 30d or 4w; given {text!r}")
    return int(match[1]) * (7 if match[2] == "w" else 1)


def parse_size(text: str) -> int:
    """Bytes of `50GB`, `1.5TB`, `512MiB` or a plain number.

    Raises:
        ConfigError: it is none of these.
    """
    try:
        return int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError as error:
        raise ConfigError(f"a size is needed, such as 50GB, 512MiB or a number of bytes; given {text!r}") from error


async def retain(database: Database, policy: RetentionPolicy, *, dry_run: bool = False) -> list[Day]:
    """Drop the days that the policy does not keep, oldest first; returns every day with the action.

    With `dry_run` nothing is dropped, and the result says what would be.
    """
    days = await _days(database)
    needed = {row["day"]: row["holder"] for row in await database.fetch("retention_needed")}
    today = await database.value("retention_today")
    for day in choose(days, policy, today, needed):
        if not dry_run and (obstacle := await _drop(database, day)):
            day.action, day.reason = "kept", obstacle
    return days


def choose(days: Sequence[Day], policy: RetentionPolicy, today: date, needed: dict[date, str]) -> list[Day]:
    """Mark each day; returns those to drop, oldest first."""
    left = sum(day.size_bytes for day in days)
    chosen: list[Day] = []
    for day in sorted(days, key=lambda found: found.day):
        reason = _excess(day, policy, today, left)
        if not reason:
            continue
        if day.day in needed:
            day.reason = f"{needed[day.day]} needs it"
            continue
        day.action, day.reason = "dropped", reason
        left -= day.size_bytes
        chosen.append(day)
    return chosen


def _excess(day: Day, policy: RetentionPolicy, today: date, left: int) -> str:
    """Why a day exceeds the policy; empty if it does not."""
    if day.day >= today:
        return ""
    if policy.days is not None and (today - day.day).days > policy.days:
        return f"older than {policy.days} days"
    if policy.size_bytes is not None and left > policy.size_bytes:
        return f"more than {policy.size_bytes} bytes"
    return ""


async def _days(database: Database) -> list[Day]:
    found: dict[date, Day] = {}
    for row in await database.fetch("retention_partitions"):
        if row["day"] is not None:
            day = found.setdefault(row["day"], Day(row["day"]))
            day.size_bytes += row["size_bytes"]
            day.tables.append(row["name"])
        else:
            for stray in await _days_in(database, row["name"]):
                found.setdefault(stray, Day(stray)).strays.append(row["name"])
    return [found[day] for day in sorted(found)]


async def _days_in(database: Database, table: str) -> list[date]:
    """The days of a default partition, each by one index lookup."""
    days: list[date] = []
    async with database.transaction() as tx:
        while day := await tx.connection.fetchval(NEXT_DAY.format(table=_quoted(table)), days[-1] if days else None):
            days.append(day)
    return days


async def _drop(database: Database, day: Day) -> str:
    """Drop a day's tables and its rows in default partitions; returns what prevents that, or an empty text."""
    try:
        async with database.transaction() as tx:
            await lock_partitions(tx)
            return await _drop_locked(tx, day)
    except PostgresError as error:
        return f"not now: {error.message}"


async def _drop_locked(tx: Transaction, day: Day) -> str:
    needed = await tx.fetch("retention_needed")
    if day.day in {row["day"] for row in needed}:
        return "a rollout or run needs it again"
    there = {row["name"] for row in await tx.fetch("retention_partitions")}
    if not day.strays and there.isdisjoint(day.tables):
        return ""  # another service has dropped it just now
    await _drop_tables(tx, day)
    gone = {"day": day.day.isoformat(), "size_bytes": day.size_bytes, "reason": day.reason}
    await tx.execute("retention_audit", gone)
    return ""


async def _drop_tables(tx: Transaction, day: Day) -> None:
    for table in day.strays:
        await tx.connection.execute(f"delete from {_quoted(table)} where day = $1", day.day)
    for table in day.tables:
        await tx.execute("drop_partition", table)


def _quoted(table: str) -> str:
    return '"' + table.replace('"', '""') + '"'
