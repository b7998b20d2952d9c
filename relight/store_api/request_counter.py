"""Counts the requests that the service serves, for its own report."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

UNCOUNTED = frozenset({"/healthz", "/readyz", "/metrics", "/v1/relight/workers"})
"""Paths of monitoring, and of reports by idle processes, which are not counted."""


class Requests:
    """The number of requests so far and under way."""

    def __init__(self) -> None:
        self.under_way = 0
        self._ended = 0

    def end(self) -> None:
        """Record an answered request."""
        self.under_way -= 1
        self._ended += 1

    def take(self) -> int:
        """The requests since the last call, and those under way."""
        ended, self._ended = self._ended, 0
        return ended + self.under_way


class CountRequests:
    """An ASGI layer."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self.app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            await self.app(scope, receive, send)
            return
        self._requests.under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._requests.end()
