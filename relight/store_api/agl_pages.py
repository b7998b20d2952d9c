"""Paging under `/v1/agl`: what a page may be, and keyset cursors, which rows that arrive or leave don't shift."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypeGuard

import orjson
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from relight.store_api.agl_bodies import MAX_PAGE, Paged
from relight.types.rollout import Attempt, Rollout
from relight.types.store import ResourcesUpdate, Span, Worker

UNSORTABLE = frozenset(
    {"input", "config", "metadata", "attributes", "events", "links", "context", "parent", "resource", "resources"}
    | {"heartbeat_stats", "error"}
)
"""Fields that have no order. `status` of a span is one by its code."""
Kind = type[Rollout] | type[Attempt] | type[Worker] | type[ResourcesUpdate] | type[Span]


def check_page(query: Paged, kind: Kind) -> None:
    """Refuse a page that can't be.

    Raises:
        HTTPException: 400, as 0.3 answers.
    """
    allowed = sortable(kind)
    if query.sort_by is not None and query.sort_by not in allowed:
        raise HTTPException(400, f"sort_by: {query.sort_by!r} is no field to sort by; use one of {', '.join(allowed)}")
    if query.limit == 0 or query.limit < -1:
        raise HTTPException(400, f"limit: {query.limit} must be greater than 0, or -1 for no limit")
    if query.offset < 0:
        raise HTTPException(400, f"offset: {query.offset} must not be negative")


def sortable(kind: type[BaseModel]) -> list[str]:
    """Fields of a type that have an order."""
    return [name for name in kind.model_fields if name not in UNSORTABLE]


def cursor_limit(limit: int) -> int:
    """How long a page with a cursor is."""
    return MAX_PAGE if limit == -1 else min(limit, MAX_PAGE)


def to_cursor(*key: str | int | float) -> str:
    """A cursor that continues after this key."""
    return urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def from_cursor(cursor: str, *kinds: type) -> list[Any] | None:
    """The key in a cursor; None for the empty one, with which paging begins.

    Raises:
        HTTPException: 400, it is none of ours.
    """
    if not cursor:
        return None
    try:
        key = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        key = None
    if not _is_key(key, kinds):
        raise HTTPException(
            400, f"cursor: {cursor[:100]!r} is none; use the `next` of the page before, or an empty one"
        )
    return key


def _is_key(key: Any, kinds: tuple[type, ...]) -> TypeGuard[list[Any]]:
    return isinstance(key, list) and [type(part) for part in key] == list(kinds)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
