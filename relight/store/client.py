"""The rollout store over HTTP (`/v1/agl`): from any process, thread or event loop, and through outages.

What makes something carries an idempotency key, so that it is made once however often it had to be sent. Two things
are sent until they may have arrived and no more: `start_attempt`, and numbers of spans, which must leave no gap.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from relight.errors import InvalidRequestError, NotFoundError, StoreError
from relight.store.base import Changes, LightningStore
from relight.store.queue.rules import statistics_of
from relight.store.storable import storable
from relight.transport.retrying_http import REQUEST_SECONDS, RetryingHttpClient
from relight.types.names import AGL_API
from relight.types.queries import AttemptQuery, Query, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, AttemptedRollout, Rollout
from relight.types.store import (
    UNSET,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Unset,
    Worker,
)
from relight.types.tracer import Span

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
ALL_FIELDS = {"Relight-Fields": "all"}
WAIT_SECONDS = 20.0
"""One request of a long wait; shorter than the time after which a request is taken for lost."""
CLOCK_SECONDS = 0.05


class QueryPage(BaseModel, Generic[T]):
    """A page as the service answers it."""

    items: list[T]
    limit: int
    offset: int
    total: int
    next: str | None = None


ROLLOUTS: TypeAdapter[list[Rollout]] = TypeAdapter(list[Rollout])
ATTEMPTED: TypeAdapter[list[AttemptedRollout]] = TypeAdapter(list[AttemptedRollout])
NULLABLE_ROLLOUT: TypeAdapter[AttemptedRollout | Rollout | None] = TypeAdapter(AttemptedRollout | Rollout | None)
SPANS: TypeAdapter[list[Span]] = TypeAdapter(list[Span])
OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
NULLABLE_ATTEMPT: TypeAdapter[Attempt | None] = TypeAdapter(Attempt | None)
NULLABLE_SPAN: TypeAdapter[Span | None] = TypeAdapter(Span | None)
NULLABLE_WORKER: TypeAdapter[Worker | None] = TypeAdapter(Worker | None)
NULLABLE_RESOURCES: TypeAdapter[ResourcesUpdate | None] = TypeAdapter(ResourcesUpdate | None)


class LightningStoreClient(RetryingHttpClient, LightningStore):
    """`LightningStore` over HTTP. The token may lie in the URL: `http://relight:TOKEN@host:4747`."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """A client goes anywhere."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    def otlp_traces_endpoint(self) -> str:
        return f"{self.url}/v1/traces"

    async def statistics(self) -> LightningStoreStatistics:
        """How much the store holds."""
        return cast("LightningStoreStatistics", _read(OBJECT, await self._get("/statistics")))

    async def _start_rollout(
        self, request: EnqueueRolloutRequest, worker_id: str | None, idempotency_key: str | None
    ) -> AttemptedRollout:
        body = {name: value for name, value in request if name not in ("dispatch", "run")} | {"worker_id": worker_id}
        return _read(AttemptedRollout, await self._post("/rollouts", body, key=idempotency_key or _new_key()))

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        body = {"rollouts": list(rollouts)}
        return _read(ROLLOUTS, await self._post("/queues/rollouts/enqueue", body, key=idempotency_key or _new_key()))

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        if limit <= 0:
            return []
        body = {"limit": limit, "worker_id": worker_id}
        return _read(ATTEMPTED, await self._post("/queues/rollouts/dequeue", body, key=idempotency_key or _new_key()))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        path = f"/rollouts/{_part(rollout_id)}/attempts"
        return _read(AttemptedRollout, await self._post(path, {"worker_id": worker_id}, once=True))

    async def add_span(self, span: Span) -> Span | None:
        """Keep a span; None where it is there already, be it by a first try whose answer was lost."""
        return _read(NULLABLE_SPAN, await self._post("/spans", span))

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        return _read(SPANS, await self._post("/spans/many", {"spans": list(spans)})) if spans else []

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id))

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        if not rollout_attempt_ids:
            return []
        pairs = [{"rollout_id": rollout, "attempt_id": attempt} for rollout, attempt in rollout_attempt_ids]
        return _read(OBJECT, await self._post("/spans/next/many", {"attempts": pairs}, once=True))["sequence_ids"]

    async def _query_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout]:
        return await self._query("/rollouts/search", query, QueryPage[AttemptedRollout | Rollout])

    async def _query_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        return await self._query(f"/rollouts/{_part(rollout_id)}/attempts/search", query, QueryPage[Attempt])

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        return _read(NULLABLE_ROLLOUT, await self._find(f"/rollouts/{_part(rollout_id)}"))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return _read(NULLABLE_ATTEMPT, await self._find(f"/rollouts/{_part(rollout_id)}/attempts/latest"))

    async def _query_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        return await self._query("/resources/search", query, QueryPage[ResourcesUpdate])

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        asked = "" if version is None else f"?version={version}"
        return _read(NULLABLE_RESOURCES, await self._find(f"/resources/{_part(resources_id)}{asked}"))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return _read(NULLABLE_RESOURCES, await self._get("/resources/latest"))

    async def add_resources(self, resources: NamedResources, *, idempotency_key: str | None = None) -> ResourcesUpdate:
        return _read(ResourcesUpdate, await self._post("/resources", resources, key=idempotency_key or _new_key()))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create it, or add a version, and one more where an answer was lost; rollouts stay with that of their pin."""
        return _read(ResourcesUpdate, await self._post(f"/resources/{_part(resources_id)}", resources))

    async def _query_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        return await self._query("/spans/search", query, QueryPage[Span])

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            seconds = max(0.0, min(left, WAIT_SECONDS))
            asked = time.monotonic()
            body = {"rollout_ids": list(rollout_ids), "timeout": seconds}
            raw = await self._post("/waits/rollouts", body, answer_seconds=REQUEST_SECONDS)
            ended = _read(ROLLOUTS, raw)
            answered_early = time.monotonic() - asked < seconds - CLOCK_SECONDS
            if answered_early or len(ended) == len(set(rollout_ids)) or left <= seconds < WAIT_SECONDS:
                return ended

    async def _update_rollout(self, rollout_id: str, changes: Changes) -> Rollout:
        return _read(Rollout, await self._post(f"/rollouts/{_part(rollout_id)}", changes))

    async def _update_attempt(self, rollout_id: str, attempt_id: str, changes: Changes) -> Attempt:
        path = f"/rollouts/{_part(rollout_id)}/attempts/{_part(attempt_id)}"
        return _read(Attempt, await self._post(path, changes))

    async def _query_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        return await self._query("/workers/search", query, QueryPage[Worker])

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return _read(NULLABLE_WORKER, await self._get(f"/workers/{_part(worker_id)}"))

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        stats = statistics_of(heartbeat_stats)
        body = {} if stats is None else {"heartbeat_stats": stats}
        return _read(Worker, await self._post(f"/workers/{_part(worker_id)}", body))

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        return _read(Rollout, await self._post(f"/rollouts/{_part(rollout_id)}/cancel", {"reason": reason}))

    async def delete_rollout(self, rollout_id: str) -> None:
        """Remove an ended rollout from outside; where the answer was lost, it may be gone when it is sent again."""
        await self.exchange("DELETE", f"{AGL_API}/rollouts/{_part(rollout_id)}", headers=ALL_FIELDS)

    async def _get(self, path: str) -> bytes:
        return await self.exchange("GET", AGL_API + path, headers=ALL_FIELDS)

    async def _find(self, path: str) -> bytes:
        try:
            return await self._get(path)
        except NotFoundError:
            return b"null"

    async def _post(
        self,
        path: str,
        body: Any,
        *,
        key: str | None = None,
        once: bool = False,
        answer_seconds: float | None = None,
    ) -> bytes:
        headers = ALL_FIELDS | {"Idempotency-Key": key} if key else ALL_FIELDS
        return await self.exchange(
            "POST", AGL_API + path, _encoded(body), headers=headers, once=once, answer_seconds=answer_seconds
        )

    async def _query(self, path: str, query: Query, answer: type[QueryPage[Any]]) -> PaginatedResult[Any]:
        limit = query.limit
        asked = limit if limit or query.after is not None else 1  # a page of none has a total, too
        found = _read(answer, await self._post(path, {**dict(query), "limit": asked}))
        items, limit = (found.items, found.limit) if limit else ([], 0)
        return PaginatedResult(items, limit=limit, offset=query.offset, total=found.total, following=found.next)


def _part(name: str) -> str:
    """A path's part; none may change which route it is."""
    if not name or name in (".", ".."):
        raise InvalidRequestError(f"id: {name!r} is not a valid id")
    return quote(name, safe="")


def _new_key() -> str:
    return uuid4().hex


def _encoded(body: Any) -> bytes:
    """JSON, also where text in it can't be encoded as it is."""
    try:
        return to_json(body, inf_nan_mode="null")
    except PydanticSerializationError as error:
        try:
            return to_json(_storable(body, "body"), inf_nan_mode="null")
        except PydanticSerializationError:
            raise InvalidRequestError(f"a value can't be represented in JSON: {error}") from error


def _storable(body: Any, field: str) -> Any:
    """A body whose values can be stored, whatever models it consists of."""
    if isinstance(body, BaseModel):
        above = "" if field == "body" else f"{field}."
        return {name: _storable(value, f"{above}{name}") for name, value in body}
    if isinstance(body, dict) and field == "body":
        return {name: _storable(value, name) for name, value in cast("dict[str, Any]", body).items()}
    if isinstance(body, list) and body and isinstance(body[0], BaseModel):
        return [_storable(item, f"{field}.{index}") for index, item in enumerate(cast("list[BaseModel]", body))]
    return storable(body, field)


def _read(kind: type[M] | TypeAdapter[T], raw: bytes) -> M | T:
    try:
        return kind.validate_json(raw) if isinstance(kind, TypeAdapter) else kind.model_validate_json(raw)
    except ValidationError as error:
        raise StoreError(f"the store service's answer is invalid: {error}") from error
