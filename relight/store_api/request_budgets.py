"""How many requests are under way at once, and how many bytes of their bodies are held.

Bytes are charged as they come, not as they are announced. Agents have a budget of their own, and each attempt a part of
it, so that no agent's requests stand in the way of another's or of the platform's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relight.errors import OverloadedError
from relight.store_api.agent_tokens import AGENT_KEY, AuthenticatedAttempt
from relight.store_api.problems import problem
from relight.transport.byte_budgets import ByteBudget, held_bytes

MAX_REQUESTS = 2000
MAX_TOTAL_BYTES = 256 * 2**20
MAX_AGENT_REQUESTS = 500
MAX_AGENT_BYTES = 128 * 2**20
"""Of all agents together."""
MAX_ATTEMPT_REQUESTS = 32
MAX_ATTEMPT_BYTES = 16 * 2**20
"""Of one attempt's agent, so also the largest body that it may send."""


class Budget:
    """The requests of some clients that are under way, and the bytes of their bodies."""

    def __init__(self, whose: str, max_requests: int, max_bytes: int) -> None:
        self.requests = 0
        self.bytes = ByteBudget(max_bytes, self._too_many_bytes)
        self._whose = whose
        self._max_requests = max_requests

    def check(self) -> None:
        """Check whether another request fits.

        Raises:
            OverloadedError: not now.
        """
        if self.requests >= self._max_requests:
            raise OverloadedError(f"{self.requests} requests of {self._whose} are under way; try again shortly")

    def _too_many_bytes(self, limit: int) -> OverloadedError:
        return OverloadedError(f"bodies of {self._whose} take {limit} bytes already; try again shortly")


class RequestBudgets:
    """The budgets of a service."""

    def __init__(self, max_body_bytes: int, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._max_body_bytes = max_body_bytes
        self._all = Budget("all clients", MAX_REQUESTS, max_total_bytes)
        self._agents = Budget("agents", MAX_AGENT_REQUESTS, MAX_AGENT_BYTES)
        self._attempts: dict[str, Budget] = {}

    async def admit(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on while it fits; else answer it with 413 or 503."""
        agent: AuthenticatedAttempt | None = scope.get(AGENT_KEY)
        budgets = self._of(agent)
        limit = MAX_ATTEMPT_BYTES if agent else self._max_body_bytes
        try:
            for budget in budgets:
                budget.check()
        except OverloadedError as error:
            await overloaded(error)(scope, receive, send)
            return
        for budget in budgets:
            budget.requests += 1
        try:
            with held_bytes(*(budget.bytes for budget in budgets)) as take:
                await Body(take, min(limit, self._max_body_bytes), receive, send).serve(app, scope)
        finally:
            for budget in budgets:
                budget.requests -= 1
            if agent and not budgets[-1].requests:
                self._attempts.pop(agent.attempt_id, None)

    def _of(self, agent: AuthenticatedAttempt | None) -> Sequence[Budget]:
        if agent is None:
            return (self._all,)
        whose = f"attempt {agent.attempt_id}"
        own = self._attempts.setdefault(agent.attempt_id, Budget(whose, MAX_ATTEMPT_REQUESTS, MAX_ATTEMPT_BYTES))
        return self._all, self._agents, own


class Body:
    """A request's body as it comes in; what does not fit ends the request."""

    def __init__(self, take: Callable[[int], None], limit: int, receive: Receive, send: Send) -> None:
        self._size = 0
        self._take = take
        self._limit = limit
        self._receive = receive
        self._send = send
        self._refusal: Response | None = None

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        """Have the app answer, or refuse in its place."""
        try:
            await app(scope, self._charged, self._answered)
        except Exception:
            if self._refusal is None:  # else the app was cut off in the middle of its request
                raise
        if self._refusal:
            await self._refusal(scope, self._receive, self._send)

    async def _charged(self) -> Message:
        """The next part of the request. The app learns of a refusal as of a client that has gone."""
        message = await self._receive()
        size = len(message.get("body", b""))
        if self._refusal is None and size:
            self._refusal = self._charge(size)
        return {"type": "http.disconnect"} if self._refusal else message

    def _charge(self, size: int) -> Response | None:
        self._size += size
        if self._size > self._limit:
            return too_large(self._limit)
        try:
            self._take(size)
        except OverloadedError as error:
            return overloaded(error)
        return None

    async def _answered(self, message: Message) -> None:
        if self._refusal is None:
            await self._send(message)


def too_large(limit: int) -> Response:
    """The answer to a body that is longer than any may be."""
    return problem(413, "InvalidRequestError", f"the body is larger than {limit} bytes; send less")


def overloaded(error: OverloadedError) -> Response:
    """The answer to a request that does not fit now."""
    return problem(error.http_status, type(error).__name__, error.message)
