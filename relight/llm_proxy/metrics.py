"""`/metrics` of the gateway, for whoever has the admin token, and the counting of its requests.

A layer around the app: an agent's call passes it and is timed. Paths are those of the routes, with ids by name; one
that is no route is `unmatched`.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode

from starlette.responses import Response

from relight.llm_proxy.refusal import bad_key
from relight.metrics import CONTENT_TYPE, UNMATCHED, Application, HttpMetrics, Receive, Scope, Send, exposition

PATHS = frozenset({"/metrics", "/v1/prometheus", "/v1/prometheus/"})
ATTEMPT = re.compile(r"/rollout/[^/]+/attempt/[^/]+/(.*)")
MODEL = re.compile(r"(v1/models)/.+")
BASIC_USER = "relight"


def route_path(scope: Scope, status: int) -> str:
    """The path of the route that a request met."""
    if status == 404:
        return UNMATCHED
    match = ATTEMPT.fullmatch(scope["path"])
    if match is None:
        return scope["path"]
    tail = MODEL.sub(r"\1/{model}", match[1])
    return f"/rollout/{{rollout_id}}/attempt/{{attempt_id}}/{tail}"


class Metered:
    """The gateway's app with its metrics."""

    def __init__(self, app: Application, admin_token: str | None) -> None:
        self._app = HttpMetrics(self._serve, route_path)
        self._inner = app
        token = admin_token or ""
        basic = b64encode(f"{BASIC_USER}:{token}".encode()).decode()
        self._accepted = [f"bearer {token}".encode(), f"basic {basic}".encode()] if token else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a scrape here; pass on the rest."""
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
        return Response(exposition(), media_type=CONTENT_TYPE)
