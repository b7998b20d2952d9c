"""Queries of `/v1/agl`: each as GET with repeatable query keys, and as POST on `/search` with the same as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from relight.store_api.agl_answers import attempt_json, page, resources_json, rollout_json, span_json, worker_json
from relight.store_api.agl_bodies import (
    AttemptSearch,
    ResourcesSearch,
    RolloutSearch,
    Search,
    SpanSearch,
    WorkerSearch,
)
from relight.store_api.agl_calls import PREFIX, AglCall, Routes, call_of, raw_json
from relight.store_api.agl_pages import check_page
from relight.types.rollout import Attempt, Rollout
from relight.types.store import ResourcesUpdate, Span, Worker

router = APIRouter(prefix=PREFIX, tags=["rollout store"])
routes = Routes(router)
PAGE = dict[str, Any]


async def _answer(request: Request, query: Any, search: Callable[[AglCall, Any], Awaitable[bytes]]) -> Response:
    return raw_json(await search(await call_of(request), query))


def _arguments(query: Search) -> dict[str, Any]:
    return {name: value for name, value in query if name != "fields"}


def _complete(call: AglCall, query: Search) -> bool:
    return query.fields == "all" or call.complete


@routes.post("/rollouts/search", RolloutSearch, PAGE)
async def search_rollouts(call: AglCall, query: RolloutSearch) -> bytes:
    """A page of rollouts, each with its newest attempt."""
    check_page(query, Rollout)
    result = await call.retried(lambda: call.store.query_rollouts(**_arguments(query)))
    complete = _complete(call, query)
    return page(result, lambda rollout: rollout_json(rollout, complete), query.cursor)


@router.get("/rollouts", response_model=PAGE)
async def query_rollouts(request: Request, query: Annotated[RolloutSearch, Query()]) -> Response:
    """A page of rollouts."""
    return await _answer(request, query, search_rollouts)


@routes.post("/rollouts/{rollout_id}/attempts/search", AttemptSearch, PAGE)
async def search_attempts(call: AglCall, query: AttemptSearch) -> bytes:
    """A page of a rollout's attempts."""
    check_page(query, Attempt)
    result = await call.retried(lambda: call.store.query_attempts(call.path["rollout_id"], **_arguments(query)))
    complete = _complete(call, query)
    return page(result, lambda attempt: attempt_json(attempt, complete))


@router.get("/rollouts/{rollout_id}/attempts", response_model=PAGE)
async def query_attempts(request: Request, rollout_id: str, query: Annotated[AttemptSearch, Query()]) -> Response:
    """A page of a rollout's attempts."""
    return await _answer(request, query, search_attempts)


@routes.post("/workers/search", WorkerSearch, PAGE)
async def search_workers(call: AglCall, query: WorkerSearch) -> bytes:
    """A page of workers."""
    check_page(query, Worker)
    return page(await call.retried(lambda: call.store.query_workers(**_arguments(query))), worker_json)


@router.get("/workers", response_model=PAGE)
async def query_workers(request: Request, query: Annotated[WorkerSearch, Query()]) -> Response:
    """A page of workers."""
    return await _answer(request, query, search_workers)


@routes.post("/resources/search", ResourcesSearch, PAGE)
async def search_resources(call: AglCall, query: ResourcesSearch) -> bytes:
    """A page of resources' snapshots."""
    check_page(query, ResourcesUpdate)
    return page(await call.retried(lambda: call.store.query_resources(**_arguments(query))), resources_json)


@router.get("/resources", response_model=PAGE)
async def query_resources(request: Request, query: Annotated[ResourcesSearch, Query()]) -> Response:
    """A page of resources' snapshots."""
    return await _answer(request, query, search_resources)


@routes.post("/spans/search", SpanSearch, PAGE)
async def search_spans(call: AglCall, query: SpanSearch) -> bytes:
    """A page of a rollout's spans."""
    check_page(query, Span)
    result = await call.retried(lambda: call.store.query_spans(**_arguments(query)))
    complete = _complete(call, query)
    return page(result, lambda span: span_json(span, complete), query.cursor)


@router.get("/spans", response_model=PAGE)
async def query_spans(request: Request, query: Annotated[SpanSearch, Query()]) -> Response:
    """A page of a rollout's spans."""
    return await _answer(request, query, search_spans)
