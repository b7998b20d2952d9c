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

from relight.store.base import LightningStore
from relight.store_api.attempt_resources import AttemptResources
from relight.store_api.grants import own_body
from relight.store_api.routes import REFERENCE, bodies, parse_body
from relight.store_api.service import StoreService

PREFIX = "/v1/agl"
JSON = "application/json"
KEY_HEADER = "idempotency-key"
FIELDS_HEADER = "relight-fields"
MAX_KEY_CHARACTERS = 200
Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer")


class RawRoute(APIRoute):
    """A route whose endpoint takes the request and answers a response."""

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **options: Any) -> None:
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
        """The caller's idempotency key."""
        return self.request.headers.get(KEY_HEADER, "")[:MAX_KEY_CHARACTERS] or None

    async def retried(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Execute an idempotent call; repeat it while Postgres does not answer."""
        service: StoreService = self.request.app.state.service
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


class Routes:
    """A router whose handlers take a `AglCall` and their body."""

    def __init__(self, router: APIRouter) -> None:
        self.router = router

    def post(
        self, path: str, body: type[Body], answer: Any, status: int = 200, *, optional: bool = False
    ) -> Callable[[Callable[[AglCall, Body], Awaitable[bytes]]], Callable[[AglCall, Body], Awaitable[bytes]]]:
        """Register a handler with a body. An optional body may be empty or null."""

        def register(
            handle: Callable[[AglCall, Body], Awaitable[bytes]],
        ) -> Callable[[AglCall, Body], Awaitable[bytes]]:
            async def endpoint(request: Request) -> Response:
                raw = await request.body()
                parsed = parse_body(body, b"{}" if optional and raw.strip() in (b"", b"null") else raw)
                return raw_json(await handle(await call_of(request), await own_body(request, parsed)), status)

            bodies.append(body)
            self._add("POST", path, endpoint, handle, answer, status, _body_schema(body, required=not optional))
            return handle

        return register

    def bare(
        self, method: str, path: str, answer: Any, status: int = 200
    ) -> Callable[[Callable[[AglCall], Awaitable[bytes]]], Callable[[AglCall], Awaitable[bytes]]]:
        """Register a handler without a body."""

        def register(handle: Callable[[AglCall], Awaitable[bytes]]) -> Callable[[AglCall], Awaitable[bytes]]:
            async def endpoint(request: Request) -> Response:
                return raw_json(await handle(await call_of(request)), status)

            self._add(method, path, endpoint, handle, answer, status, {})
            return handle

        return register

    def _add(
        self,
        method: str,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        handle: Callable[..., Any],
        answer: Any,
        status: int,
        extra: dict[str, Any],
    ) -> None:
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            name=handle.__name__,
            summary=(handle.__doc__ or "").strip(),
            response_model=None,
            responses={status: {"model": answer}},
            status_code=status,
            openapi_extra=extra | in_path(path),
            route_class_override=RawRoute,
        )


def in_path(path: str) -> dict[str, Any]:
    """The OpenAPI schema of what stands in a path, which the endpoint itself does not name."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": parameters} if parameters else {}


def _body_schema(body: type[BaseModel], *, required: bool) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=body.__name__)}
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema}}}}
