"""The store service's ASGI app: routes behind the access checks, errors as problem+json."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from starlette.responses import Response

from relight.errors import ConfigError, NeedsPostgresError
from relight.observability.metrics import HttpMetrics
from relight.store.attempts.attempt_tokens import runner_token
from relight.store_api import agl, agl_queries, command_routes, datasets, events, metrics, otlp, routes, view_routes
from relight.store_api.access import AccessMiddleware
from relight.store_api.agent_tokens import AgentTokens
from relight.store_api.attempt_resources import AttemptResources
from relight.store_api.backends import Backend
from relight.store_api.grants import Grants
from relight.store_api.group_commit_store import GroupCommitStore
from relight.store_api.problems import add_problem_handlers
from relight.store_api.request_budgets import MAX_TOTAL_BYTES
from relight.store_api.request_counter import CountRequests, Requests

MAX_BODY_BYTES = 64 * 1024 * 1024
ROUTED = (metrics, routes, datasets, view_routes, events, command_routes, agl_queries, agl, otlp)
"""The first matching route counts: `events` is not a command, and `search` is not a rollout's id."""
ON_POSTGRES = (datasets, view_routes, events, command_routes)
"""Routes that an in-memory store answers with NeedsPostgresError."""


def create_app(
    backend: Backend,
    *,
    token: str | None,
    max_body_bytes: int = MAX_BODY_BYTES,
    max_total_bytes: int = MAX_TOTAL_BYTES,
    retry_seconds: float = 2.0,
    gateway_url: str | None = None,
) -> FastAPI:
    """The app over a store, which it does not close.

    With `gateway_url`, external runners get keys for the gateway.

    Raises:
        ConfigError: there is no token; the service is never open to all.
    """
    if not token:
        raise ConfigError("the store service needs an admin token: set RELIGHT_TOKEN, or write <home>/token")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await aclose(app)

    app = FastAPI(title="Relight store", version=version("relight"), lifespan=lifespan, docs_url=None, redoc_url=None)
    _fill_state(app, backend, retry_seconds, gateway_url)
    app.state.grants = Grants(backend.database, runner_token(token)) if backend.database else None
    app.add_api_route("/healthz", _healthz, include_in_schema=False)
    app.add_api_route("/readyz", _ready_route(backend), include_in_schema=False)
    for module in ROUTED:
        refused = backend.database is None and module in ON_POSTGRES
        app.include_router(module.router, dependencies=[Depends(_refuse)] if refused else [])
    _complete_schema(app)
    add_problem_handlers(app)
    app.add_middleware(CountRequests, requests=app.state.requests)  # refused requests don't count
    app.add_middleware(
        AccessMiddleware,
        token=token,
        max_body_bytes=max_body_bytes,
        max_total_bytes=max_total_bytes,
        agents=AgentTokens(backend.agent_of_token),
        grants=app.state.grants,
    )
    app.add_middleware(HttpMetrics, path_of=metrics.route_path)  # outermost: refused ones count, too
    return app


def _fill_state(app: FastAPI, backend: Backend, retry_seconds: float, gateway_url: str | None) -> None:
    """What routes find in `app.state`."""
    database, state = backend.database, app.state
    state.backend = backend
    state.database = database
    state.service = GroupCommitStore(backend.attempts, retry_seconds)
    state.otlp = otlp.Otlp(backend.spans)
    state.attempt_resources = AttemptResources(backend, gateway_url)
    state.ending = asyncio.Event()
    state.streams = events.Streams(database, state.ending) if database else None
    state.snapshot = metrics.PostgresFigures(database) if database else None
    state.requests = Requests()


async def _refuse() -> None:
    raise NeedsPostgresError(
        "this store is in memory, which has no runs, events, data sets and commands: start one on Postgres, "
        "by `relight up`, or by `relight store` with RELIGHT_POSTGRES_URL"
    )


async def aclose(app: FastAPI) -> None:
    """Finish what is under way; the store stays open."""
    app.state.ending.set()
    if app.state.streams:
        await app.state.streams.tail.aclose()
    await app.state.service.aclose()
    await app.state.backend.aclose()
    await app.state.otlp.aclose()


def _complete_schema(app: FastAPI) -> None:
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generate()
        schema.setdefault("components", {}).setdefault("schemas", {}).update(routes.body_schemas())
        return schema

    app.openapi = openapi


async def _healthz() -> Response:
    """The process is running."""
    return Response(b'{"status":"ok"}', media_type="application/json")


def _ready_route(backend: Backend) -> Callable[[], Awaitable[Response]]:
    async def _readyz() -> Response:
        """The store answers."""
        await backend.check()
        return Response(b'{"status":"ready"}', media_type="application/json")

    return _readyz
