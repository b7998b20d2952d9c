"""Routes for runner and gateway. Bodies are parsed directly from bytes, since these routes are hot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from relight.errors import InvalidRequestError
from relight.store_api.problems import describe_faults
from relight.store_api.service import StoreService
from relight.types.wire import (
    AttemptOutcome,
    CallContext,
    CommitResults,
    DeliveryBatch,
    EngineList,
    FailureBatch,
    FinishRequest,
    GenerationBatch,
    GradingRequest,
    Heartbeat,
    Nothing,
    OpenAnswer,
    OpenRequest,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
    SpanBatch,
    SpansStored,
    Transcript,
    WorkerReport,
)

PREFIX = "/v1/relight"
NOTHING = Nothing()
REFERENCE = "#/components/schemas/{model}"
router = APIRouter(prefix=PREFIX, tags=["attempts"])
bodies: list[type[BaseModel]] = []
"""Types that routes parse themselves; FastAPI does not know them."""
Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer", bound=BaseModel)
Handler = Callable[[StoreService, Body], Awaitable[Answer]]


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


def post(path: str, body: type[Body], answer: type[Answer]) -> Callable[[Handler[Body, Answer]], Handler[Body, Answer]]:
    """Register a handler for a POST route, with its types in the OpenAPI schema."""

    def register(handle: Handler[Body, Answer]) -> Handler[Body, Answer]:
        async def endpoint(request: Request) -> Response:
            return json_response(await handle(request.app.state.service, parse_body(body, await request.body())))

        bodies.append(body)
        schema = {"$ref": REFERENCE.format(model=body.__name__)}
        content: dict[str, Any] = {"required": True, "content": {"application/json": {"schema": schema}}}
        router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            name=handle.__name__,
            summary=(handle.__doc__ or "").strip(),
            response_model=None,
            responses={200: {"model": answer}},
            openapi_extra={"requestBody": content},
        )
        return handle

    return register


@post("/attempts/open", OpenRequest, OpenAnswer)
async def open_attempt(service: StoreService, body: OpenRequest) -> OpenAnswer:
    """Open an attempt at a rollout."""
    return await service.retried(lambda: service.store.open_attempt(body))


@post("/attempts/finish", FinishRequest, AttemptOutcome)
async def finish_attempt(service: StoreService, body: FinishRequest) -> AttemptOutcome:
    """Close an attempt."""
    return await service.retried(lambda: service.store.finish_attempt(body))


@post("/attempts/await-grading", GradingRequest, Nothing)
async def await_grading(service: StoreService, body: GradingRequest) -> Nothing:
    """Hand an attempt over to its grader."""
    await service.retried(lambda: service.store.await_grading(body))
    return NOTHING


@router.get("/attempts/{attempt_id}/transcript")
async def read_transcript(request: Request, attempt_id: str) -> Transcript:
    """The transcript of an attempt for its grader."""
    service: StoreService = request.app.state.service
    return await service.retried(lambda: service.store.transcript(attempt_id))


@post("/attempts/heartbeat", Heartbeat, Nothing)
async def heartbeat(service: StoreService, body: Heartbeat) -> Nothing:
    """Record that an attempt's process is alive."""
    await service.retried(lambda: service.store.heartbeat(body.attempt_id, body.fence, body.worker_id))
    return NOTHING


@post("/attempts/spans", SpanBatch, SpansStored)
async def add_spans(service: StoreService, body: SpanBatch) -> SpansStored:
    """Store an attempt's spans."""
    stored = await service.retried(
        lambda: service.store.add_spans(body.rollout_id, body.attempt_id, body.fence, body.spans)
    )
    return SpansStored(stored=stored)


@post("/gateway/resolve", ResolveRequest, CallContext)
async def resolve(service: StoreService, body: ResolveRequest) -> CallContext:
    """Look up an attempt by its token."""
    return await service.retried(lambda: service.store.resolve(body))


@post("/gateway/recall", RecallRequest, RecalledCall)
async def recall(service: StoreService, body: RecallRequest) -> RecalledCall:
    """A call whose answer was not delivered."""
    return await service.retried(lambda: service.store.recall(body))


@post("/gateway/generations", GenerationBatch, CommitResults)
async def commit_generations(service: StoreService, body: GenerationBatch) -> CommitResults:
    """Record model calls."""
    return CommitResults(items=await service.commit(body.items))


@post("/gateway/failures", FailureBatch, Nothing)
async def record_call_failures(service: StoreService, body: FailureBatch) -> Nothing:
    """Record calls that the platform failed."""
    await service.failures.submit(body.items)
    return NOTHING


@post("/gateway/delivered", DeliveryBatch, Nothing)
async def mark_delivered(service: StoreService, body: DeliveryBatch) -> Nothing:
    """Record whether answers were delivered."""
    await service.deliveries.submit(body.items)
    return NOTHING


@post("/workers", WorkerReport, Nothing)
async def register_worker(service: StoreService, body: WorkerReport) -> Nothing:
    """Record the report of a process."""
    await service.retried(lambda: service.store.register_worker(body))
    return NOTHING


@router.get("/engines")
async def read_engines(request: Request, run: str) -> EngineList:
    """Engines of a run that may get calls."""
    service: StoreService = request.app.state.service
    return EngineList(items=await service.retried(lambda: service.store.engines(run)))
