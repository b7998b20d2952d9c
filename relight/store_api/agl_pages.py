"""Checks of paging arguments under `/v1/agl`."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from relight.types.queries import Query
from relight.types.rollout import Attempt, Rollout
from relight.types.store import ResourcesUpdate, Span, Worker

UNSORTABLE = frozenset(
    {"input", "config", "metadata", "attributes", "events", "links", "context", "parent", "resource", "resources"}
    | {"heartbeat_stats", "error"}
)
"""Fields without an order. A span's `status` is sorted by its code."""
Kind = type[Rollout] | type[Attempt] | type[Worker] | type[ResourcesUpdate] | type[Span]


def check_page(query: Query, kind: Kind) -> None:
    """Check the arguments of a page.

    Raises:
        HTTPException: 400, as in 0.3.
    """
    allowed = sortable(kind)
    if query.sort_by is not None and query.sort_by not in allowed:
        raise HTTPException(400, f"sort_by: {query.sort_by!r} is not sortable; use one of {', '.join(allowed)}")
    if query.limit < -1 or (query.limit == 0 and kind is not Attempt):  # a page of no attempts is one in 0.3's store
        raise HTTPException(400, f"limit: {query.limit} must be greater than 0, or -1 for no limit")
    if query.offset < 0:
        raise HTTPException(400, f"offset: {query.offset} must not be negative")


def sortable(kind: type[BaseModel]) -> list[str]:
    """Fields of a type that have an order."""
    return [name for name in kind.model_fields if name not in UNSORTABLE]
