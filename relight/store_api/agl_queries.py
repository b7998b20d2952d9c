"""Queries of `/v1/agl`: each as GET with repeatable query keys, and as POST on `/search` with the same as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from relight.store_api import agl_bodies
from relight.store_api.agl_answers import attempt_json, page, rollout_json, span_json, whole
from relight.store_api.agl_bodies import Search
from relight.store_api.agl_calls import AglCall, Routes, call_of, in_path, raw_json
from relight.store_api.grants import own_body
from relight.types.names import AGL_API
from relight.types.queries import Query as StoreQuery
from relight.types.rollout import Attempt, Rollout
from relight.types.store import ResourcesUpdate, Worker
from relight.types.tracer import Span

router = APIRouter(prefix=AGL_API, tags=["rollout store"])
routes = Routes(router)
PAGE = dict[str, Any]
UNSORTABLE = frozenset(
    {"input", "config", "metadata", "attributes", "events", "links", "context", "parent", "resource", "resources"}
    | {"heartbeat_stats", "error"}
)
"""Fields without an order. A span's `status` is sorted by its code."""
Kind = type[Rollout] | type[Attempt] | type[Worker] | type[ResourcesUpdate] | type[Span]


def check_page(query: StoreQuery, kind: Kind) -> None:
    """Check the arguments of a page.

    Raises:
        HTTPException: 400, as in 0.3.
    """
    allowed = [name for name in kind.model_fields if name not in UNSORTABLE]
    if query.sort_by is not None and query.sort_by not in allowed:
        raise HTTPException(400, f"sort_by: {query.sort_by!r} is not sortable; use one of {', '.join(allowed)}")
    if query.limit < -1 or (query.limit == 0 and kind is not Attempt):  # a page of no attempts is one in 0.3's store
        raise HTTPException(400, f"limit: {query.limit} must be greater than 0, or -1 for no limit")
    if query.offset < 0:
        raise HTTPException(400, f"offset: {query.offset} must not be negative")


def register(name: str, path: str, kind: Kind, body: type[Search], encode: Callable[[Any, bool], bytes]) -> None:
    """Both routes to the store's `query_<name>`; `encode` gets whether all fields are wanted."""

    async def search(call: AglCall, query: Search) -> bytes:
        check_page(query, kind)
        asked = {key: value for key, value in query if key != "fields"} | call.path
        found = await call.retried(lambda: getattr(call.store, f"query_{name}")(**asked))
        complete = query.fields == "all" or call.complete
        return page(found, lambda row: encode(row, complete), query.after)

    async def query(request: Request, query: Any) -> Response:
        return raw_json(await search(await call_of(request), await own_body(request, query)))

    search.__name__, query.__name__ = f"search_{name}", f"query_{name}"
    search.__doc__ = query.__doc__ = f"A page of {name}."
    query.__annotations__["query"] = Annotated[cast("Any", body), Query()]
    routes.post(f"{path}/search", body, PAGE)(search)
    router.get(path, response_model=PAGE, openapi_extra=in_path(path))(query)


register("rollouts", "/rollouts", Rollout, agl_bodies.RolloutSearch, rollout_json)
register("attempts", "/rollouts/{rollout_id}/attempts", Attempt, agl_bodies.AttemptSearch, attempt_json)
register("workers", "/workers", Worker, agl_bodies.WorkerSearch, whole)
register("resources", "/resources", ResourcesUpdate, agl_bodies.ResourcesSearch, whole)
register("spans", "/spans", Span, agl_bodies.SpanSearch, span_json)
