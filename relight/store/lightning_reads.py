"""The rollout store's queries: what is asked for, as SQL conditions, and the rows as what users know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from relight.store import lightning_queries as sql
from relight.store import lightning_rows as rows
from relight.store.database import Database
from relight.store.span_rows import read_spans
from relight.types.rollout import Attempt, Rollout
from relight.types.store import FilterLogic, PaginatedResult, ResourcesUpdate, SortOrder, Span, Worker


class Paging(TypedDict):
    """How the rows of a query are joined, sorted and cut."""

    logic: FilterLogic
    sort_by: str | None
    sort_order: SortOrder
    limit: int
    offset: int


async def query_rollouts(
    database: Database,
    paging: Paging,
    *,
    status_in: Sequence[str] | None,
    rollout_id_in: Sequence[str] | None,
    rollout_id_contains: str | None,
    **musts: Any,
) -> PaginatedResult[Rollout]:
    """Rollouts with their newest attempts. `musts` are mode, run, step, failure_class, reward_min and reward_max."""
    query = sql.Query(
        "attempted_json_v1(r, (select a from attempts a where a.rollout_id = r.rollout_id"
        " and a.sequence_id = r.attempts)) as row",
        "rollouts r",
        ("r.created_at", "r.rollout_id"),
    )
    for column in ("mode", "run", "step", "failure_class"):
        query.must(f"r.{column} = {{}}", musts[column])
    query.must("r.reward >= {}", musts["reward_min"])
    query.must("r.reward <= {}", musts["reward_max"])
    query.filter("r.status = any ({}::text[])", _texts(status_in))
    query.filter("r.rollout_id = any ({}::text[])", _texts(rollout_id_in))
    query.filter("strpos(r.rollout_id, {}) > 0", rollout_id_contains)
    found, total = await sql.page(database, query, sql.ROLLOUT_SORTS, **paging)
    return _page([rows.rollout_of(row["row"]) for row in found], total, paging)


async def query_attempts(database: Database, rollout_id: str, paging: Paging) -> PaginatedResult[Attempt]:
    """Attempts of a rollout."""
    query = sql.Query("attempt_json_v1(a) as row", "attempts a", ("sequence_id",))
    query.must("rollout_id = {}", rollout_id)
    found, total = await sql.page(database, query, sql.ATTEMPT_SORTS, **paging)
    return _page([rows.attempt_of(row["row"]) for row in found], total, paging)


async def query_resources(
    database: Database, paging: Paging, *, resources_id: str | None, resources_id_contains: str | None
) -> PaginatedResult[ResourcesUpdate]:
    """Snapshots of resources."""
    query = sql.Query("*", "resources", ("sequence",))
    query.filter_text("resources_id", resources_id, resources_id_contains)
    found, total = await sql.page(database, query, sql.RESOURCES_SORTS, **paging)
    return _page([rows.resources_of(row) for row in found], total, paging)


async def query_workers(
    database: Database, paging: Paging, *, status_in: Sequence[str] | None, worker_id_contains: str | None
) -> PaginatedResult[Worker]:
    """Those who run agents; the platform's other processes are none of them."""
    query = sql.Query("*", "workers", ("started_at", "worker_id"), musts=["kind in ('external', 'runner')"])
    query.filter("status = any ({}::text[])", _texts(status_in))
    query.filter("strpos(worker_id, {}) > 0", worker_id_contains)
    found, total = await sql.page(database, query, sql.WORKER_SORTS, **paging)
    return _page([rows.worker_of(row) for row in found], total, paging)


async def query_spans(
    database: Database,
    paging: Paging,
    rollout_id: str,
    attempt_id: str | None,
    filters: dict[str, tuple[str | None, str | None]],
) -> PaginatedResult[Span]:
    """Spans of a rollout or of one of its attempts; `filters` are by column: the text, or a part of it."""
    query = sql.Query("*", "spans", ("sequence_id", "start_time", "span_id"))
    query.must("rollout_id = {}", rollout_id)
    query.must("day = (select day from rollouts where rollout_id = {})", rollout_id)
    if attempt_id == "latest":
        query.must(
            "attempt_id = (select attempt_id from attempts where rollout_id = {} order by sequence_id desc limit 1)",
            rollout_id,
        )
    else:
        query.must("attempt_id = {}", attempt_id)
    for column, (exact, contains) in filters.items():
        query.filter_text(column, exact, contains)
    found, total = await sql.page(database, query, sql.SPAN_SORTS, **paging)
    return _page(await read_spans(database, found), total, paging)


def _texts(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else [str(value) for value in values]


def _page(items: Sequence[Any], total: int, paging: Paging) -> PaginatedResult[Any]:
    return PaginatedResult(items, limit=paging["limit"], offset=paging["offset"], total=total)
