"""Routes for runner and gateway. Bodies are parsed directly from bytes, since these routes are hot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from relight.errors import InvalidRequestError
from relight.store.attempts.base import AttemptStore
from relight.store_api.grants import own_body, own_run
from relight.store_api.group_commit_store import GroupCommitStore
from relight.store_api.problems import describe_faults
from relight.types import wire
from relight.types.names import RELIGHT_API

NOTHING = wire.Nothing()
REFERENCE = "#/components/schemas/{model}"
router = APIRouter(prefix=RELIGHT_API, tags=["attempts"])
bodies: list[type[BaseModel]] = []
"""Types that routes parse themselves; FastAPI does not know them."""
Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer", bound=BaseModel)
Handler = Callable[[GroupCommitStore, Body], Awaitable[Answer]]
Endpoint = Callable[[Request], Awaitable[Response]]


def parse_body(kind: type[Body], raw: bytes) -> Body:
    """A request's body as its type.

    Raises:
        InvalidRequestError: names each field at fault.
    """
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidRequestError(describe_faults(error)) from error


def json_response(answer: BaseModel) -> Response:
    """An answer as JSON."""
    return Response(answer.__pydantic_serializer__.to_json(answer), media_type="application/json")


def body_schemas() -> dict[str, Any]:
    """JSON Schemas of the bodies by name, for the OpenAPI schema."""
    _, schema = models_json_schema([(body, "validation") for body in bodies], ref_template=REFERENCE)
    return schema["$defs"]


def body_schema(body: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The part of a route's OpenAPI schema that names the body that its endpoint parses."""
    bodies.append(body)
    schema = {"$ref": REFERENCE.format(model=body.__name__)}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def add_route(
    router: APIRouter, path: str, endpoint: Endpoint, handle: Callable[..., Any], answer: Any, **options: Any
) -> None:
    """Add a route to a router, described by the name, the docstring and the answer of what handles it."""
    status: int = options.get("status_code", 200)
    summary = (handle.__doc__ or "").strip()
    described = {"name": handle.__name__, "summary": summary, "responses": {status: {"model": answer}}}
    router.add_api_route(path, endpoint, response_model=None, **described, **options)


def post(path: str, body: type[Body], answer: type[Answer]) -> Callable[[Handler[Body, Answer]], Handler[Body, Answer]]:
    """Register a handler for a POST route, with its types in the OpenAPI schema."""

    def register(handle: Handler[Body, Answer]) -> Handler[Body, Answer]:
        async def endpoint(request: Request) -> Response:
            given = await own_body(request, parse_body(body, await request.body()))
            return json_response(await handle(request.app.state.service, given))

        add_route(router, path, endpoint, handle, answer, methods=["POST"], openapi_extra=body_schema(body))
        return handle

    return register


def forward(path: str, method: str, body: type[BaseModel], answer: type[BaseModel] = wire.Nothing) -> None:
    """A POST route to a method of the store, which may be called twice."""

    async def handle(service: GroupCommitStore, given: BaseModel) -> BaseModel:
        return await service.retried(lambda: getattr(service.store, method)(given)) or NOTHING

    handle.__name__, handle.__doc__ = method, (getattr(AttemptStore, method).__doc__ or "").partition("\n")[0]
    post(path, body, answer)(handle)


forward("/attempts/open", "open_attempt", wire.OpenRequest, wire.OpenAnswer)
forward("/attempts/finish", "finish_attempt", wire.FinishRequest, wire.AttemptOutcome)
forward("/attempts/await-grading", "await_grading", wire.GradingRequest)
forward("/gateway/resolve", "resolve", wire.ResolveRequest, wire.CallContext)
forward("/gateway/ended", "ended_attempts", wire.EndedAttempts, wire.EndedAttempts)
forward("/gateway/recall", "recall", wire.RecallRequest, wire.RecalledCall)
forward("/workers", "register_worker", wire.WorkerReport)


@router.get("/attempts/{attempt_id}/transcript")
async def read_transcript(request: Request, attempt_id: str) -> wire.Transcript:
    """What a grader gets to see of an attempt."""
    service: GroupCommitStore = request.app.state.service
    return await service.retried(lambda: service.store.transcript(attempt_id))


@post("/attempts/heartbeat", wire.Heartbeat, wire.Nothing)
async def heartbeat(service: GroupCommitStore, body: wire.Heartbeat) -> wire.Nothing:
    """Record that an attempt's process is alive."""
    await service.retried(lambda: service.store.heartbeat(body.attempt_id, body.fence, body.worker_id))
    return NOTHING


@post("/attempts/spans", wire.SpanBatch, wire.SpansStored)
async def add_spans(service: GroupCommitStore, body: wire.SpanBatch) -> wire.SpansStored:
    """Store an attempt's spans."""
    stored = await service.retried(
        lambda: service.store.add_spans(body.rollout_id, body.attempt_id, body.fence, body.spans)
    )
    return wire.SpansStored(stored=stored)


@post("/gateway/generations", wire.GenerationBatch, wire.CommitResults)
async def commit_generations(service: GroupCommitStore, body: wire.GenerationBatch) -> wire.CommitResults:
    """Record model calls."""
    return wire.CommitResults(items=await service.commit(body.items))


@post("/gateway/failures", wire.FailureBatch, wire.Nothing)
async def record_call_failures(service: GroupCommitStore, body: wire.FailureBatch) -> wire.Nothing:
    """Record calls that the platform failed."""
    await service.failures.submit(body.items)
    return NOTHING


@post("/gateway/delivered", wire.DeliveryBatch, wire.Nothing)
async def mark_delivered(service: GroupCommitStore, body: wire.DeliveryBatch) -> wire.Nothing:
    """Record whether answers were delivered."""
    await service.deliveries.submit(body.items)
    return NOTHING


@router.get("/engines")
async def read_engines(request: Request, run: str) -> wire.EngineList:
    """Engines of a run that take calls."""
    service: GroupCommitStore = request.app.state.service
    wanted = own_run(request, run) or run
    return wire.EngineList(items=await service.retried(lambda: service.store.engines(wanted)))
