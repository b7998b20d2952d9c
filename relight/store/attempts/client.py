"""The attempt store over HTTP.

Every request may be sent twice, so the client repeats it, with the same content, during outages; the caller gets an
error only after `retry_seconds`. A request that the service refuses (4xx) is never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from relight.errors import StoreError
from relight.settings import Settings
from relight.store.storable import storable
from relight.transport.retrying_http import RETRY_SECONDS, Content, RetryingHttpClient
from relight.types import wire
from relight.types.names import RELIGHT_API

Answer = TypeVar("Answer", bound=BaseModel)


class StoreClient(RetryingHttpClient):
    """Implements `AttemptStore` over HTTP. Safe to share by tasks; one connection pool for each event loop."""

    @classmethod
    def from_settings(cls, settings: Settings, *, retry_seconds: float = RETRY_SECONDS) -> Self:
        """A client of the store service that the settings name."""
        return cls(settings.store_url, settings.token_value, retry_seconds=retry_seconds)

    async def open_attempt(self, request: wire.OpenRequest) -> wire.OpenAnswer:
        return await self._post("/attempts/open", request, wire.OpenAnswer)

    async def finish_attempt(self, request: wire.FinishRequest) -> wire.AttemptOutcome:
        return await self._post("/attempts/finish", request, wire.AttemptOutcome)

    async def await_grading(self, request: wire.GradingRequest) -> None:
        await self._post("/attempts/await-grading", request, wire.Nothing)

    async def transcript(self, attempt_id: str) -> wire.Transcript:
        path = f"/attempts/{quote(attempt_id, safe='')}/transcript"
        return await self._send("GET", path, None, wire.Transcript)

    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        heartbeat = wire.Heartbeat(attempt_id=attempt_id, fence=fence, worker_id=worker_id)
        await self._post("/attempts/heartbeat", heartbeat, wire.Nothing)

    async def add_spans(
        self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[wire.SpanRecord]
    ) -> int:
        batch = wire.SpanBatch(rollout_id=rollout_id, attempt_id=attempt_id, fence=fence, spans=list(spans))
        return (await self._post("/attempts/spans", batch, wire.SpansStored)).stored

    async def resolve(self, request: wire.ResolveRequest) -> wire.CallContext:
        return await self._post("/gateway/resolve", request, wire.CallContext)

    async def ended_attempts(self, request: wire.EndedAttempts) -> wire.EndedAttempts:
        return await self._post("/gateway/ended", request, wire.EndedAttempts)

    async def recall(self, request: wire.RecallRequest) -> wire.RecalledCall:
        return await self._post("/gateway/recall", request, wire.RecalledCall)

    async def commit_generations(self, items: Sequence[wire.GenerationRecord]) -> list[wire.CommitResult]:
        """Record model calls. The time until they are sent is added to how long ago they began."""
        started = time.monotonic()

        def body() -> bytes:
            waited = time.monotonic() - started
            aged = [item.model_copy(update={"duration_seconds": item.duration_seconds + waited}) for item in items]
            return to_json(wire.GenerationBatch.model_construct(items=aged))

        return (await self._send("POST", "/gateway/generations", body, wire.CommitResults)).items

    async def record_call_failures(self, items: Sequence[wire.CallFailure]) -> None:
        await self._post("/gateway/failures", wire.FailureBatch(items=list(items)), wire.Nothing)

    async def mark_delivered(self, items: Sequence[wire.DeliveryMark]) -> None:
        await self._post("/gateway/delivered", wire.DeliveryBatch(items=list(items)), wire.Nothing)

    async def engines(self, run: str) -> list[wire.EngineInfo]:
        answer = await self._send("GET", "/engines", None, wire.EngineList, params={"run": run})
        return answer.items

    async def register_worker(self, worker: wire.WorkerReport, *, retry_seconds: float | None = None) -> None:
        await self._post("/workers", worker, wire.Nothing, retry_seconds=retry_seconds)

    async def _post(self, path: str, body: BaseModel, answer: type[Answer], **options: Any) -> Answer:
        return await self._send("POST", path, to_json(body), answer, **options)

    async def _send(self, method: str, path: str, body: Content, answer: type[Answer], **options: Any) -> Answer:
        raw = await self.exchange(method, f"{RELIGHT_API}{path}", body, **options)
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
