"""The store service's ASGI app: routes behind the access checks, errors as problem+json."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from relight.errors import ConfigError
from relight.observability.metrics import HttpMetrics
from relight.observability.redaction import Redactor
from relight.store.attempts.base import AttemptStore
from relight.store.base import LightningStore
from relight.store.database import Database
from relight.store.spans.ingest import SpanIngest
from relight.store_api import agl, agl_queries, command_routes, datasets, events, metrics, otlp, routes, views
from relight.store_api.access import AccessMiddleware
from relight.store_api.agent_tokens import AgentTokens
from relight.store_api.attempt_resources import AttemptResources
from relight.store_api.lightning import RolloutStore
from relight.store_api.problems import add_problem_handlers
from relight.store_api.served import CountRequests, Requests
from relight.store_api.service import StoreService

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""Bodies of all requests under way; requests above it get 503."""
ROUTED = (metrics, routes, datasets, views, events, command_routes, agl_queries, agl, otlp)
"""The first matching route counts: `events` is not a command, and `search` is not a rollout's id."""


def create_app(
    store: AttemptStore,
    database: Database,
    *,
    token: str | None,
    max_body_bytes: int = MAX_BODY_BYTES,
    max_total_bytes: int = MAX_TOTAL_BYTES,
    retry_seconds: float = 2.0,
    lightning: LightningStore | None = None,
    redactor: Redactor | None = None,
    gateway_url: str | None = None,
) -> FastAPI:
    """The app over a store, with `lightning` or Postgres for rollouts. It closes neither store nor database.

    With `gateway_url`, external runners get keys for the gateway.

    Raises:
        ConfigError: there is no token; the service is never open to all.
    """
    if not token:
        raise ConfigError("the store service needs an admin token: set RELIGHT_TOKEN, or write <home>/token")
    service = StoreService(store, retry_seconds)
    spans = SpanIngest(database, redactor or Redactor(secrets=[token]))
    traces = otlp.Otlp(spans)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await aclose(app)

    app = FastAPI(title="Relight store", version=version("relight"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.database = database
    app.state.otlp = traces
    app.state.lightning = RolloutStore(database, spans, lightning)
    app.state.handover = AttemptResources(database, gateway_url)
    app.state.streams = events.Streams(database)
    app.state.snapshot = metrics.Snapshot(database)
    app.state.requests = Requests()
    app.add_api_route("/healthz", _healthz, include_in_schema=False)
    app.add_api_route("/readyz", _ready_route(database), include_in_schema=False)
    for module in ROUTED:
        app.include_router(module.router)
    _complete_schema(app)
    add_problem_handlers(app)
    app.add_middleware(CountRequests, requests=app.state.requests)  # refused requests don't count
    app.add_middleware(
        AccessMiddleware,
        token=token,
        max_body_bytes=max_body_bytes,
        max_total_bytes=max_total_bytes,
        agents=AgentTokens(database),
    )
    app.add_middleware(HttpMetrics, path_of=metrics.route_path)  # outermost: refused ones count, too
    return app


async def aclose(app: FastAPI) -> None:
    """Finish what is under way; store and database stay open."""
    await app.state.streams.aclose()
    await app.state.service.aclose()
    await app.state.lightning.aclose()
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


def _ready_route(database: Database) -> Callable[[], Awaitable[Response]]:
    async def _readyz() -> Response:
        """Postgres answers."""
        await database.value("ping")
        return Response(b'{"status":"ready"}', media_type="application/json")

    return _readyz
