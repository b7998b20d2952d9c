"""Routes under `/v1/agl`: bytes are parsed directly to the body's type, and the answer is bytes.

FastAPI uses these routes only for its schema; its other processing of requests is skipped, since these routes are hot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relight.errors import InvalidRequestError
from relight.store.base import LightningStore
from relight.store_api.attempt_resources import AttemptResources
from relight.store_api.grants import limited_grant, own_body
from relight.store_api.group_commit_store import GroupCommitStore
from relight.store_api.routes import Endpoint, add_route, body_schema, parse_body

JSON = "application/json"
KEY_HEADER = "idempotency-key"
FIELDS_HEADER = "relight-fields"
MAX_KEY_CHARACTERS = 200
Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer")


class RawRoute(APIRoute):
    """A route whose endpoint takes the request and answers a response."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


@dataclass(frozen=True, slots=True)
class AglCall:
    """A request to the rollout store."""

    request: Request
    store: LightningStore
    attempt_resources: AttemptResources

    @property
    def path(self) -> dict[str, str]:
        """Values in the path, by name."""
        return self.request.path_params

    @property
    def complete(self) -> bool:
        """True if the caller wants all fields, and not only 0.3's."""
        request = self.request
        return request.headers.get(FIELDS_HEADER) == "all" or request.query_params.get("fields") == "all"

    @property
    def key(self) -> str | None:
        """The caller's idempotency key; with a token of one run, a key of that run.

        Raises:
            InvalidRequestError: it is too long to be kept.
        """
        key = self.request.headers.get(KEY_HEADER) or None
        if key and len(key) > MAX_KEY_CHARACTERS:
            raise InvalidRequestError(
                f"Idempotency-Key: {len(key)} characters are too long; send at most {MAX_KEY_CHARACTERS}"
            )
        grant = limited_grant(self.request)
        return f"{grant.run}/{key}" if key and grant else key

    async def retried(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Execute an idempotent call; repeat it while Postgres does not answer."""
        service: GroupCommitStore = self.request.app.state.service
        return await service.retried(work)

    async def keyed(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Execute a call; repeat it only if it has an idempotency key."""
        return await (self.retried(work) if self.key else work())


async def call_of(request: Request) -> AglCall:
    """A request with the store that it is for."""
    return AglCall(request, await request.app.state.backend.lightning(), request.app.state.attempt_resources)


def raw_json(content: bytes, status: int = 200) -> Response:
    """JSON that is bytes already."""
    return Response(content, status, media_type=JSON)


Handler = Callable[[AglCall, Body], Awaitable[bytes]]
BareHandler = Callable[[AglCall], Awaitable[bytes]]


class Routes:
    """A router whose handlers take a `AglCall` and their body."""

    def __init__(self, router: APIRouter) -> None:
        self.router = router

    def post(
        self, path: str, body: type[Body], answer: Any, status: int = 200, *, optional: bool = False
    ) -> Callable[[Handler[Body]], Handler[Body]]:
        """Register a handler with a body. An optional body may be empty or null."""

        def register(handle: Handler[Body]) -> Handler[Body]:
            async def endpoint(request: Request) -> Response:
                raw = await request.body()
                parsed = parse_body(body, b"{}" if optional and raw.strip() in (b"", b"null") else raw)
                return raw_json(await handle(await call_of(request), await own_body(request, parsed)), status)

            schema = body_schema(body, required=not optional)
            self._add("POST", path, endpoint, handle, answer, schema, status_code=status)
            return handle

        return register

    def bare(self, method: str, path: str, answer: Any) -> Callable[[BareHandler], BareHandler]:
        """Register a handler without a body."""

        def register(handle: BareHandler) -> BareHandler:
            async def endpoint(request: Request) -> Response:
                return raw_json(await handle(await call_of(request)))

            self._add(method, path, endpoint, handle, answer, {})
            return handle

        return register

    def _add(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        handle: Any,
        answer: Any,
        schema: dict[str, Any],
        **options: Any,
    ) -> None:
        options |= {"methods": [method], "route_class_override": RawRoute, "openapi_extra": schema | in_path(path)}
        add_route(self.router, path, endpoint, handle, answer, **options)


def in_path(path: str) -> dict[str, Any]:
    """The OpenAPI schema of what stands in a path, which the endpoint itself does not name."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": parameters} if parameters else {}
