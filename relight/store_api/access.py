"""Checks every request: the token, the size of the request, and the total size of requests under way.

It is one ASGI layer around the whole app, so that no route can be forgotten. Only `/healthz` is open. The admin token
is valid everywhere, an access token where `grants` says, an attempt's token only for its own spans at `/v1/traces`.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from hashlib import sha256

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relight.errors import RelightError, UnauthorizedError
from relight.store_api.agent_tokens import AGENT_KEY, AgentTokens
from relight.store_api.grants import Grants
from relight.store_api.problems import problem

OPEN_PATHS = frozenset({"/healthz"})
AGENT_PATHS = frozenset({"/v1/traces"})
BASIC_USER = "relight"


class BodyTooLargeError(Exception):
    """A body without a declared length is too large."""


class AccessMiddleware:
    """Bearer and Basic authentication in constant time, then the size limits."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        max_body_bytes: int,
        max_total_bytes: int,
        agents: AgentTokens | None = None,
        grants: Grants | None = None,
    ) -> None:
        basic = b64encode(f"{BASIC_USER}:{token}".encode())
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.max_total_bytes = max_total_bytes
        self._agents = agents
        self._grants = grants
        self._total_bytes = 0
        self._accepted = {b"bearer": sha256(token.encode()).digest(), b"basic": sha256(basic).digest()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        size = self._declared_bytes(headers)
        try:
            await self._authorize(headers.get(b"authorization", b""), scope)
        except RelightError as error:
            await problem(error.http_status, type(error).__name__, error.message)(scope, receive, send)
            return
        if size > self.max_body_bytes:
            refusal = self._too_large()
        elif size and self._total_bytes + size > self.max_total_bytes:
            refusal = problem(503, "OverloadedError", "too much is under way already; try again shortly")
        else:
            await self._admit(size, scope, receive, send)
            return
        await refusal(scope, receive, send)

    async def _admit(self, size: int, scope: Scope, receive: Receive, send: Send) -> None:
        chunked = size == self.max_body_bytes
        self._total_bytes += size
        try:
            await (self._counted if chunked else self.app)(scope, receive, send)
        finally:
            self._total_bytes -= size

    async def _authorize(self, authorization: bytes, scope: Scope) -> None:
        if self._knows(authorization) or await self._knows_agent(authorization, scope):
            return
        if self._grants is None:
            raise UnauthorizedError("a valid token is needed: Authorization: Bearer TOKEN")
        await self._grants.admit(_token_in(authorization), scope)

    def _knows(self, authorization: bytes) -> bool:
        scheme, _, credentials = authorization.partition(b" ")
        expected = self._accepted.get(scheme.lower(), b"")
        return hmac.compare_digest(sha256(credentials.strip()).digest(), expected)

    async def _knows_agent(self, authorization: bytes, scope: Scope) -> bool:
        """Whether it is an attempt's token on a path for agents; the attempt is then in the scope."""
        scheme, _, credentials = authorization.partition(b" ")
        if self._agents is None or scope["path"] not in AGENT_PATHS or scheme.lower() != b"bearer":
            return False
        agent = await self._agents.find(credentials.strip().decode("latin-1"))
        if agent:
            scope[AGENT_KEY] = agent
        return agent is not None

    def _declared_bytes(self, headers: dict[bytes, bytes]) -> int:
        """Size of a body; one that comes in chunks counts as the largest allowed."""
        if b"transfer-encoding" in headers:
            return self.max_body_bytes
        length = headers.get(b"content-length", b"0")
        return int(length) if length.isdigit() else self.max_body_bytes + 1

    def _too_large(self) -> Response:
        return problem(413, "InvalidRequestError", f"the body is larger than {self.max_body_bytes} bytes; send less")

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counting() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.max_body_bytes:
                raise BodyTooLargeError
            return message

        try:
            await self.app(scope, counting, send)
        except BodyTooLargeError:
            await self._too_large()(scope, receive, send)


def _token_in(authorization: bytes) -> str:
    """The token of a header, or nothing; by Basic it is the password of `relight`."""
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return credentials.strip().decode("latin-1")
    if scheme.lower() != b"basic":
        return ""
    try:
        user, _, password = b64decode(credentials.strip()).decode("latin-1").partition(":")
    except ValueError:
        return ""
    return password if user == BASIC_USER else ""
