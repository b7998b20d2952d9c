"""`/metrics` of the gateway, for the admin token: its requests and the health of its engines.

An ASGI layer around the app that counts and times each request. Paths are those of the routes, with parameter names for
ids; unknown ones are `unmatched`.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from relight.llm_proxy.engines import Engine
from relight.llm_proxy.request_errors import bad_key
from relight.observability.metrics import (
    BASIC_USER,
    CONTENT_TYPE,
    UNMATCHED,
    Application,
    HttpMetrics,
    Receive,
    Scope,
    Send,
    exposition,
)

PATHS = frozenset({"/metrics", "/v1/prometheus", "/v1/prometheus/"})
ATTEMPT = re.compile(r"/rollout/[^/]+/attempt/[^/]+/(.*)")
MODEL = re.compile(r"(v1/models)/.+")


def route_path(scope: Scope, status: int) -> str:
    """The path of a request's route."""
    if status == 404:
        return UNMATCHED
    match = ATTEMPT.fullmatch(scope["path"])
    if match is None:
        return scope["path"]
    tail = MODEL.sub(r"\1/{model}", match[1])
    return f"/rollout/{{rollout_id}}/attempt/{{attempt_id}}/{tail}"


class EngineHealth(Collector):
    """The state of the engines that this gateway uses."""

    def __init__(self, engines: Callable[[], Sequence[Engine]]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        """One row for each engine."""
        now = monotonic()
        engines = [(engine, [engine.name, engine.info.run, engine.model]) for engine in self._engines()]
        values: dict[str, tuple[str, Callable[[Engine], float]]] = {
            "relight_gateway_engine_healthy": ("It answers.", lambda engine: 0 if engine.is_unhealthy(now) else 1),
            "relight_gateway_engine_version": ("Policy version held.", lambda engine: engine.info.version),
            "relight_gateway_engine_in_flight": ("Calls under way.", lambda engine: engine.in_flight),
        }
        for name, (text, value) in values.items():
            family = GaugeMetricFamily(name, text, labels=("engine_id", "run", "model"))
            for engine, labels in engines:
                family.add_metric(labels, value(engine))
            yield family


class Metered:
    """The gateway's app with its metrics."""

    def __init__(
        self, app: Application, admin_token: str | None, engines: Callable[[], Sequence[Engine]] = list
    ) -> None:
        self._engines = CollectorRegistry(auto_describe=False)
        self._engines.register(EngineHealth(engines))
        self._app = HttpMetrics(self._serve, route_path)
        self._inner = app
        token = admin_token or ""
        basic = b64encode(f"{BASIC_USER}:{token}".encode()).decode()
        self._accepted = [f"bearer {token}".encode(), f"basic {basic}".encode()] if token else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests for metrics; pass on all others."""
        await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await self._inner(scope, receive, send)
        else:
            await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        given = scheme.lower() + b" " + credentials.strip()
        if not any(hmac.compare_digest(given, accepted) for accepted in self._accepted):
            return Response(bad_key().body, 401, media_type="application/json")
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD"})
        return Response(exposition() + generate_latest(self._engines), media_type=CONTENT_TYPE)
