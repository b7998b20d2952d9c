"""Checks every request: the token, its size, and what is under way already.

It is one ASGI layer around the whole app, so that no route can be forgotten. Only `/healthz` is open. The admin token
is valid everywhere; for which other tokens a route is, `grants.ROUTES` says.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from hashlib import sha256

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relight.errors import RelightError, UnauthorizedError
from relight.observability.metrics import BASIC_USER
from relight.store_api.agent_tokens import AGENT_KEY, AgentTokens
from relight.store_api.grants import Grants, Principal, principals_of
from relight.store_api.problems import problem
from relight.store_api.request_budgets import RequestBudgets, too_large


class AccessMiddleware:
    """Bearer and Basic authentication in constant time, then the budgets."""

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
        self._budgets = RequestBudgets(max_body_bytes, max_total_bytes)
        self._agents = agents
        self._grants = grants
        self._accepted = {b"bearer": sha256(token.encode()).digest(), b"basic": sha256(basic).digest()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or Principal.ANYONE in principals_of(scope["method"], scope["path"]):
            await self.app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is None:
            await self._budgets.admit(self.app, scope, receive, send)
        else:
            await refusal(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that has no right to be here, or that announces too much."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:  # a proxy before this service may have checked the other
            return problem(400, "InvalidRequestError", "two Authorization headers came; send one")
        try:
            await self._authorize(given[0] if given else b"", scope)
        except RelightError as error:
            return problem(error.http_status, type(error).__name__, error.message)
        return too_large(self.max_body_bytes) if _declared_bytes(scope) > self.max_body_bytes else None

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
        """Whether it is an attempt's token on a route for agents; the attempt is then in the scope."""
        scheme, _, credentials = authorization.partition(b" ")
        for_agents = Principal.ATTEMPT in principals_of(scope["method"], scope["path"])
        if self._agents is None or not for_agents or scheme.lower() != b"bearer":
            return False
        agent = await self._agents.find(credentials.strip().decode("latin-1"))
        if agent:
            scope[AGENT_KEY] = agent
        return agent is not None


def _declared_bytes(scope: Scope) -> int:
    """The size that a body is said to have; 0 if it comes in chunks."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length" and value.isdigit()), 0)


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
