"""The rollout store over HTTP (`/v1/agl`): from any process, thread or event loop, and through outages.

What makes something carries an idempotency key, so that it is made once however often it had to be sent. Two things
are sent until they may have arrived and no more: `start_attempt`, and numbers of spans, which must leave no gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from relight.errors import InvalidRequestError, NotFoundError, StoreError
from relight.store.otel_spans import span_of
from relight.store.patient_http import PatientHttp
from relight.store.storable import storable
from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, AttemptedRollout, AttemptStatus, Mode, Rollout, RolloutConfig, RolloutStatus
from relight.types.store import (
    UNSET,
    Dispatch,
    EnqueueRolloutRequest,
    FilterLogic,
    PaginatedResult,
    ResourcesUpdate,
    SortOrder,
    Span,
    Unset,
    Worker,
    WorkerStatus,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
PREFIX = "/v1/agl"
ALL_FIELDS = {"Relight-Fields": "all"}
WAIT_SECONDS = 20.0
"""One request of a long wait; shorter than the time after which a request is taken for lost."""
CLOCK_SECONDS = 0.05


class Page(BaseModel, Generic[T]):
    """A page as the service answers it."""

    items: list[T]
    limit: int
    offset: int
    total: int


ROLLOUTS: TypeAdapter[list[Rollout]] = TypeAdapter(list[Rollout])
ATTEMPTED: TypeAdapter[list[AttemptedRollout]] = TypeAdapter(list[AttemptedRollout])
ONE_ROLLOUT: TypeAdapter[AttemptedRollout | Rollout] = TypeAdapter(AttemptedRollout | Rollout)
SPANS: TypeAdapter[list[Span]] = TypeAdapter(list[Span])
OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
NULLABLE_ATTEMPT: TypeAdapter[Attempt | None] = TypeAdapter(Attempt | None)
NULLABLE_SPAN: TypeAdapter[Span | None] = TypeAdapter(Span | None)
NULLABLE_WORKER: TypeAdapter[Worker | None] = TypeAdapter(Worker | None)
NULLABLE_RESOURCES: TypeAdapter[ResourcesUpdate | None] = TypeAdapter(ResourcesUpdate | None)


class LightningStoreClient(PatientHttp):
    """Implements `LightningStore`. The token may lie in the URL: `http://relight:TOKEN@host:4747`."""

    @property
    def capabilities(self) -> dict[str, bool]:
        """A client goes anywhere."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    def otlp_traces_endpoint(self) -> str:
        """URL that spans are exported to."""
        return f"{self.url}/v1/traces"

    async def statistics(self) -> dict[str, Any]:
        """How much the store holds."""
        return _read(OBJECT, await self._get("/statistics"))

    async def start_rollout(
        self,
        input: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        """A rollout with attempt 1 at once, never queued."""
        body = {"input": input, "mode": mode, "resources_id": resources_id, "config": config, "metadata": metadata}
        raw = await self._post("/rollouts", body | {"worker_id": worker_id}, key=idempotency_key or _new_key())
        return _read(AttemptedRollout, raw)

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        dispatch: Dispatch | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        """A rollout at the end of the queue."""
        request = EnqueueRolloutRequest.model_construct(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, dispatch=dispatch
        )
        (rollout,) = await self.enqueue_many_rollouts([request], idempotency_key=idempotency_key)
        return rollout

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Several, in order, in one transaction."""
        body = {"rollouts": list(rollouts)}
        return _read(ROLLOUTS, await self._post("/queues/rollouts/enqueue", body, key=idempotency_key or _new_key()))

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout in the queue."""
        claimed = await self.dequeue_many_rollouts(1, worker_id, idempotency_key=idempotency_key)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit`."""
        if limit <= 0:
            return []
        body = {"limit": limit, "worker_id": worker_id}
        return _read(ATTEMPTED, await self._post("/queues/rollouts/dequeue", body, key=idempotency_key or _new_key()))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """One more attempt by hand."""
        path = f"/rollouts/{_part(rollout_id)}/attempts"
        return _read(AttemptedRollout, await self._post(path, {"worker_id": worker_id}, once=True))

    async def add_span(self, span: Span) -> Span | None:
        """Keep a span; None where it is there already, be it by a first try whose answer was lost."""
        return _read(NULLABLE_SPAN, await self._post("/spans", span))

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Keep spans in one transaction; those that were new."""
        return _read(SPANS, await self._post("/spans/many", {"spans": list(spans)})) if spans else []

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Keep an OpenTelemetry `ReadableSpan`."""
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        return await self.add_span(span_of(rollout_id, attempt_id, sequence_id, readable_span))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Next number of the rollout."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """One for each pair, in order."""
        if not rollout_attempt_ids:
            return []
        pairs = [{"rollout_id": rollout, "attempt_id": attempt} for rollout, attempt in rollout_attempt_ids]
        return _read(OBJECT, await self._post("/spans/next/many", {"attempts": pairs}, once=True))["sequence_ids"]

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        mode: Mode | None = None,
        run: str | None = None,
        step: int | None = None,
        failure_class: str | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts, each with its newest attempt where it has one."""
        query = {
            "status_in": _listed(status_in),
            "rollout_id_in": _listed(rollout_id_in),
            "rollout_id_contains": rollout_id_contains,
            "filter_logic": filter_logic,
            "mode": mode,
            "run": run,
            "step": step,
            "failure_class": failure_class,
            "reward_min": reward_min,
            "reward_max": reward_max,
        }
        return await self._query(
            "/rollouts/search", query, sort_by, sort_order, limit, offset, Page[AttemptedRollout | Rollout]
        )

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Attempts of a rollout."""
        path = f"/rollouts/{_part(rollout_id)}/attempts/search"
        return await self._query(path, {}, sort_by, sort_order, limit, offset, Page[Attempt])

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """None where it is unknown."""
        raw = await self._find(f"/rollouts/{_part(rollout_id)}")
        return None if raw is None else _read(ONE_ROLLOUT, raw)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """None where there is none."""
        raw = await self._find(f"/rollouts/{_part(rollout_id)}/attempts/latest")
        return None if raw is None else _read(NULLABLE_ATTEMPT, raw)

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """All snapshots."""
        query = {
            "resources_id": resources_id,
            "resources_id_contains": resources_id_contains,
            "filter_logic": filter_logic,
        }
        return await self._query("/resources/search", query, sort_by, sort_order, limit, offset, Page[ResourcesUpdate])

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """None where it is unknown."""
        raw = await self._find(f"/resources/{_part(resources_id)}")
        return None if raw is None else _read(NULLABLE_RESOURCES, raw)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or updated last."""
        return _read(NULLABLE_RESOURCES, await self._get("/resources/latest"))

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """A new snapshot, version 1."""
        return _read(ResourcesUpdate, await self._post("/resources", resources, key=_new_key()))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create it, or replace what it holds and raise its version, once more where an answer was lost."""
        return _read(ResourcesUpdate, await self._post(f"/resources/{_part(resources_id)}", resources))

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Spans of a rollout, of one attempt, or of the newest (`latest`)."""
        query = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
            "filter_logic": filter_logic,
        }
        return await self._query("/spans/search", query, sort_by, sort_order, limit, offset, Page[Span])

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Those that have ended, at once when all have, else after `timeout` seconds; None waits without end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            seconds = max(0.0, min(left, WAIT_SECONDS))
            asked = time.monotonic()
            raw = await self._post("/waits/rollouts", {"rollout_ids": list(rollout_ids), "timeout": seconds})
            ended = _read(ROLLOUTS, raw)
            answered_early = time.monotonic() - asked < seconds - CLOCK_SECONDS
            if answered_early or len(ended) == len(set(rollout_ids)) or left <= seconds < WAIT_SECONDS:
                return ended

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any | Unset = UNSET,
        mode: Mode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Change fields."""
        body = {"input": input, "mode": mode, "resources_id": resources_id, "status": status, "config": config}
        return _read(Rollout, await self._post(f"/rollouts/{_part(rollout_id)}", _set(body | {"metadata": metadata})))

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        """Change an attempt (or `latest`)."""
        body: dict[str, Any] = {
            "status": status,
            "worker_id": worker_id,
            "last_heartbeat_time": last_heartbeat_time,
            "metadata": {} if metadata is None else metadata,
        }
        path = f"/rollouts/{_part(rollout_id)}/attempts/{_part(attempt_id)}"
        return _read(Attempt, await self._post(path, _set(body)))

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """All workers."""
        query = {
            "status_in": _listed(status_in),
            "worker_id_contains": worker_id_contains,
            "filter_logic": filter_logic,
        }
        return await self._query("/workers/search", query, sort_by, sort_order, limit, offset, Page[Worker])

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None where it is unknown."""
        return _read(NULLABLE_WORKER, await self._get(f"/workers/{_part(worker_id)}"))

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> Worker:
        """A heartbeat.

        Raises:
            TypeError: no statistics.
        """
        if heartbeat_stats is None:
            raise TypeError("heartbeat_stats is needed; send an object, if only {}")
        return _read(Worker, await self._post(f"/workers/{_part(worker_id)}", {"heartbeat_stats": heartbeat_stats}))

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """End a rollout."""
        return _read(Rollout, await self._post(f"/rollouts/{_part(rollout_id)}/cancel", {"reason": reason}))

    async def delete_rollout(self, rollout_id: str) -> None:
        """Remove an ended rollout of no run; where the answer was lost, it may be gone when it is sent again."""
        await self.exchange("DELETE", f"{PREFIX}/rollouts/{_part(rollout_id)}", headers=ALL_FIELDS)

    async def _get(self, path: str) -> bytes:
        return await self.exchange("GET", PREFIX + path, headers=ALL_FIELDS)

    async def _find(self, path: str) -> bytes | None:
        try:
            return await self._get(path)
        except NotFoundError:
            return None

    async def _post(self, path: str, body: Any, *, key: str | None = None, once: bool = False) -> bytes:
        headers = ALL_FIELDS | {"Idempotency-Key": key} if key else ALL_FIELDS
        return await self.exchange("POST", PREFIX + path, _encoded(body), headers=headers, once=once)

    async def _query(
        self,
        path: str,
        query: Mapping[str, Any],
        sort_by: str | None,
        sort_order: SortOrder,
        limit: int,
        offset: int,
        answer: type[Page[Any]],
    ) -> PaginatedResult[Any]:
        paging = {"sort_by": sort_by, "sort_order": sort_order, "limit": limit or 1, "offset": offset}
        found = _read(answer, await self._post(path, {**query, **paging}))
        return PaginatedResult(found.items if limit else [], limit=limit, offset=offset, total=found.total)


def _part(name: str) -> str:
    """A path's part; none may change which route it is."""
    if not name or name in (".", ".."):
        raise InvalidRequestError(f"id: {name!r} is none")
    return quote(name, safe="")


def _new_key() -> str:
    return uuid4().hex


def _listed(values: Sequence[T] | None) -> list[T] | None:
    return None if values is None else list(values)


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, Unset)}


def _encoded(body: Any) -> bytes:
    """JSON, also where text in it can't be encoded as it is."""
    try:
        return to_json(body, inf_nan_mode="null")
    except PydanticSerializationError as error:
        plain = body.model_dump() if isinstance(body, BaseModel) else body
        try:
            return to_json(storable(plain), inf_nan_mode="null")
        except PydanticSerializationError:
            raise InvalidRequestError(f"a value is no JSON: {error}") from error


def _read(kind: type[M] | TypeAdapter[T], raw: bytes) -> M | T:
    try:
        return kind.validate_json(raw) if isinstance(kind, TypeAdapter) else kind.model_validate_json(raw)
    except ValidationError as error:
        raise StoreError(f"the store service's answer makes no sense: {error}") from error
