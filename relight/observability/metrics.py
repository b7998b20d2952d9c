"""The metrics that a process counts itself, for Prometheus: requests, calls of the store, group commits.

Agent Lightning 0.3's names are in Prometheus' spelling (`agl.http.total` is `agl_http_total`); others begin with
`relight_`. Each process exports its own; nothing here reads Postgres.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Store = TypeVar("Store")

BASIC_USER = "relight"
"""The user name that comes with a token where it is sent as a password."""

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_PATHS = 200
"""The number of different paths that are counted separately."""
UNMATCHED, OTHER = "unmatched", "other"
CLIENT_GONE = 499
"""The status of a request whose client disconnected before the answer."""

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
HTTP_LABELS = ("method", "path", "status")
HTTP_TOTAL = Counter("agl_http_total", "HTTP requests answered.", HTTP_LABELS, registry=REGISTRY)
HTTP_LATENCY = Histogram(
    "agl_http_latency", "Seconds to the end of the answer.", HTTP_LABELS, registry=REGISTRY, buckets=SECONDS
)
HTTP_IN_FLIGHT = Gauge("relight_http_in_flight", "HTTP requests under way.", registry=REGISTRY)
STORE_LABELS = ("method", "store_pubmeth", "status")
STORE_TOTAL = Counter("agl_store_total", "Calls of the store.", STORE_LABELS, registry=REGISTRY)
STORE_LATENCY = Histogram(
    "agl_store_latency", "Seconds of a call of the store.", STORE_LABELS, registry=REGISTRY, buckets=SECONDS
)
GROUP_ITEMS = Histogram(
    "relight_group_commit_items", "Items that shared a commit.", ("group",), registry=REGISTRY, buckets=ITEMS
)
GROUP_SECONDS = Histogram(
    "relight_group_commit_seconds", "Seconds of a shared commit.", ("group",), registry=REGISTRY, buckets=SECONDS
)
GROUP_WAITING = Gauge("relight_group_commit_waiting", "Items that wait for a commit.", ("group",), registry=REGISTRY)
SPANS = Counter("relight_spans_total", "Spans by what became of them.", ("state",), registry=REGISTRY)
GENERATIONS = Counter("relight_generations_total", "Model calls recorded.", ("state",), registry=REGISTRY)


def exposition() -> bytes:
    """This process' metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)


class HttpMetrics:
    """An ASGI layer that counts and times requests by their route."""

    def __init__(self, app: Application, path_of: Callable[[Scope, int], str]) -> None:
        self.app = app
        self._path_of = path_of
        self._known: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = perf_counter(), CLIENT_GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        HTTP_IN_FLIGHT.inc()
        try:
            await self.app(scope, receive, sending)
        except Exception:  # any error: an outer layer answers it
            status = 500
            raise
        finally:
            HTTP_IN_FLIGHT.dec()
            labels = (scope["method"], self._path(scope, status), str(status))
            HTTP_TOTAL.labels(*labels).inc()
            HTTP_LATENCY.labels(*labels).observe(perf_counter() - began)

    def _path(self, scope: Scope, status: int) -> str:
        path = self._path_of(scope, status)
        if len(self._known) < MAX_PATHS:
            self._known.add(path)
        return path if path in self._known else OTHER


class Measured:
    """A store whose calls are counted and timed; all other attributes are the store's own."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            began, status = perf_counter(), "OK"
            try:
                return await found(*args, **options)
            except BaseException as error:
                status = type(error).__name__
                raise
            finally:
                STORE_TOTAL.labels(name, name, status).inc()
                STORE_LATENCY.labels(name, name, status).observe(perf_counter() - began)

        self.__dict__[name] = call
        return call


def measured(store: Store) -> Store:
    """The same store, counted."""
    return cast("Store", Measured(store))
