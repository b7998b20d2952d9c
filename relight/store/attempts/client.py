"""The attempt store over HTTP.

Every request may be sent twice, so the client repeats it, with the same content, during outages; the caller gets an
error only after `retry_seconds`. A request that the service refuses (4xx) is never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from relight.errors import StoreError
from relight.settings import Settings
from relight.store.storable import storable
from relight.transport.retrying_http import RETRY_SECONDS, Content, RetryingHttpClient
from relight.types.wire import (
    AttemptOutcome,
    CallContext,
    CallFailure,
    CommitResult,
    CommitResults,
    DeliveryBatch,
    DeliveryMark,
    EngineInfo,
    EngineList,
    FailureBatch,
    FinishRequest,
    GenerationBatch,
    GenerationRecord,
    GradingRequest,
    Heartbeat,
    Nothing,
    OpenAnswer,
    OpenRequest,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
    SpanBatch,
    SpanRecord,
    SpansStored,
    Transcript,
    WorkerReport,
)

Answer = TypeVar("Answer", bound=BaseModel)
PREFIX = "/v1/relight"


class StoreClient(RetryingHttpClient):
    """Implements `AttemptStore` over HTTP. Safe to share by tasks; one connection pool for each event loop."""

    @classmethod
    def from_settings(cls, settings: Settings, *, retry_seconds: float = RETRY_SECONDS) -> Self:
        """A client of the store service that the settings name."""
        return cls(settings.store_url, settings.token_value, retry_seconds=retry_seconds)

    async def open_attempt(self, request: OpenRequest, *, retry_seconds: float | None = None) -> OpenAnswer:
        """Open an attempt, or learn why none is opened."""
        return await self._post("/attempts/open", request, OpenAnswer, retry_seconds)

    async def finish_attempt(self, request: FinishRequest, *, retry_seconds: float | None = None) -> AttemptOutcome:
        """Close an attempt; the answer is what was recorded."""
        return await self._post("/attempts/finish", request, AttemptOutcome, retry_seconds)

    async def await_grading(self, handed: GradingRequest, *, retry_seconds: float | None = None) -> None:
        """Keep what the agent left; the attempt stays open for its grader."""
        await self._post("/attempts/await-grading", handed, Nothing, retry_seconds)

    async def transcript(self, attempt_id: str, *, retry_seconds: float | None = None) -> Transcript:
        """What a grader judges an attempt by."""
        path = f"/attempts/{quote(attempt_id, safe='')}/transcript"
        return await self._send("GET", path, None, Transcript, retry_seconds)

    async def heartbeat(
        self, attempt_id: str, fence: int, worker_id: str, *, retry_seconds: float | None = None
    ) -> None:
        """Say that an attempt's process is alive."""
        beat = Heartbeat(attempt_id=attempt_id, fence=fence, worker_id=worker_id)
        await self._post("/attempts/heartbeat", beat, Nothing, retry_seconds)

    async def add_spans(
        self,
        rollout_id: str,
        attempt_id: str,
        fence: int | None,
        spans: Sequence[SpanRecord],
        *,
        retry_seconds: float | None = None,
    ) -> int:
        """Keep spans; returns how many were new to the request that stored them."""
        batch = SpanBatch(rollout_id=rollout_id, attempt_id=attempt_id, fence=fence, spans=list(spans))
        return (await self._post("/attempts/spans", batch, SpansStored, retry_seconds)).stored

    async def resolve(self, request: ResolveRequest, *, retry_seconds: float | None = None) -> CallContext:
        """Who is behind an attempt's token."""
        return await self._post("/gateway/resolve", request, CallContext, retry_seconds)

    async def recall(self, request: RecallRequest, *, retry_seconds: float | None = None) -> RecalledCall:
        """A call whose answer did not arrive after all."""
        return await self._post("/gateway/recall", request, RecalledCall, retry_seconds)

    async def commit_generations(
        self, items: Sequence[GenerationRecord], *, retry_seconds: float | None = None
    ) -> list[CommitResult]:
        """Record model calls. The time until they are sent is added to how long ago they began."""
        started = time.monotonic()

        def body() -> bytes:
            waited = time.monotonic() - started
            aged = [item.model_copy(update={"duration_seconds": item.duration_seconds + waited}) for item in items]
            return to_json(GenerationBatch.model_construct(items=aged))

        return (await self._send("POST", "/gateway/generations", body, CommitResults, retry_seconds)).items

    async def record_call_failures(self, items: Sequence[CallFailure], *, retry_seconds: float | None = None) -> None:
        """Record calls that the platform failed."""
        await self._post("/gateway/failures", FailureBatch(items=list(items)), Nothing, retry_seconds)

    async def mark_delivered(self, items: Sequence[DeliveryMark], *, retry_seconds: float | None = None) -> None:
        """Record whether answers reached the agent."""
        await self._post("/gateway/delivered", DeliveryBatch(items=list(items)), Nothing, retry_seconds)

    async def engines(self, run: str, *, retry_seconds: float | None = None) -> list[EngineInfo]:
        """Engines of a run that take calls."""
        answer = await self._send("GET", "/engines", None, EngineList, retry_seconds, params={"run": run})
        return answer.items

    async def register_worker(self, worker: WorkerReport, *, retry_seconds: float | None = None) -> None:
        """Record a process, or that it is still there."""
        await self._post("/workers", worker, Nothing, retry_seconds)

    async def _post(self, path: str, body: BaseModel, answer: type[Answer], retry_seconds: float | None) -> Answer:
        return await self._send("POST", path, to_json(body), answer, retry_seconds)

    async def _send(
        self,
        method: str,
        path: str,
        body: Content,
        answer: type[Answer],
        retry_seconds: float | None,
        params: dict[str, str] | None = None,
    ) -> Answer:
        raw = await self.exchange(method, f"{PREFIX}{path}", body, retry_seconds=retry_seconds, params=params)
        try:
            return answer.model_validate_json(raw)
        except ValidationError as error:
            raise StoreError(f"the store service's answer is invalid: {error}") from error


def to_json(body: BaseModel) -> bytes:
    """A body as JSON, also where an agent's text can't be encoded as it is."""
    try:
        return body.model_dump_json().encode()
    except PydanticSerializationError:  # lone surrogates, and values that are no JSON
        clean = type(body).model_construct(**storable(body.model_dump()))
        return clean.model_dump_json(warnings=False).encode()
