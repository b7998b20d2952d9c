"""The attempt store over HTTP.

Every request may be sent twice, so the client repeats it, with the same content, through outages: the caller learns of
one only after `patience_seconds`. A request that the service refuses (4xx) is never repeated.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from relight.errors import BY_STATUS, InvalidRequestError, RelightError, StoreError
from relight.settings import Settings
from relight.store.envelopes import (
    Beat,
    CommitResults,
    DeliveryBatch,
    EngineList,
    FailureBatch,
    GenerationBatch,
    Nothing,
    SpanBatch,
    SpansStored,
    WorkerReport,
)
from relight.store.storable import storable
from relight.types.wire import (
    AttemptOutcome,
    CallContext,
    CallFailure,
    CommitResult,
    DeliveryMark,
    EngineInfo,
    FinishRequest,
    GenerationRecord,
    HandOver,
    OpenAnswer,
    OpenRequest,
    ResolveRequest,
    SpanRecord,
    Transcript,
)

Answer = TypeVar("Answer", bound=BaseModel)
PREFIX = "/v1/relight"
AWAY = frozenset({502, 503, 504})
"""Statuses that pass by themselves."""
PATIENCE_SECONDS = 300.0
REQUEST_SECONDS = 30.0
"""Longest wait for one answer; then the request is repeated."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
JSON = {"Content-Type": "application/json"}


def error_of(status: int, body: bytes) -> RelightError:
    """The error that a service's answer means."""
    try:
        data = orjson.loads(body)
        detail = str(data["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"the store service answered {status}: {body[:200].decode(errors='replace')}"
    fallback = InvalidRequestError if 400 <= status < 500 else StoreError
    return BY_STATUS.get(status, fallback)(detail)


class StoreClient:
    """Implements `AttemptStore` over HTTP. Safe to share by tasks; one connection pool for each event loop."""

    def __init__(self, url: str, token: str | None, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.url = url.rstrip("/")
        self.patience_seconds = patience_seconds
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def from_settings(cls, settings: Settings, *, patience_seconds: float = PATIENCE_SECONDS) -> Self:
        """A client of the store service that the settings name."""
        return cls(settings.store_url, settings.token_value, patience_seconds=patience_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def open_attempt(self, request: OpenRequest, *, patience_seconds: float | None = None) -> OpenAnswer:
        """Open an attempt, or learn why none is opened."""
        return await self._post("/attempts/open", request, OpenAnswer, patience_seconds)

    async def finish_attempt(self, request: FinishRequest, *, patience_seconds: float | None = None) -> AttemptOutcome:
        """Close an attempt; the answer is what was recorded."""
        return await self._post("/attempts/finish", request, AttemptOutcome, patience_seconds)

    async def hand_over(self, handed: HandOver, *, patience_seconds: float | None = None) -> None:
        """Keep what the agent left; the attempt stays open for its grader."""
        await self._post("/attempts/handover", handed, Nothing, patience_seconds)

    async def transcript(self, attempt_id: str, *, patience_seconds: float | None = None) -> Transcript:
        """What a grader judges an attempt by."""
        path = f"/attempts/{quote(attempt_id, safe='')}/transcript"
        return await self._send("GET", path, None, Transcript, patience_seconds)

    async def heartbeat(
        self, attempt_id: str, fence: int, worker_id: str, *, patience_seconds: float | None = None
    ) -> None:
        """Say that an attempt's process is alive."""
        beat = Beat(attempt_id=attempt_id, fence=fence, worker_id=worker_id)
        await self._post("/attempts/heartbeat", beat, Nothing, patience_seconds)

    async def add_spans(
        self,
        rollout_id: str,
        attempt_id: str,
        fence: int | None,
        spans: Sequence[SpanRecord],
        *,
        patience_seconds: float | None = None,
    ) -> int:
        """Keep spans; returns how many were new to the request that stored them."""
        batch = SpanBatch(rollout_id=rollout_id, attempt_id=attempt_id, fence=fence, spans=list(spans))
        return (await self._post("/attempts/spans", batch, SpansStored, patience_seconds)).stored

    async def resolve(self, request: ResolveRequest, *, patience_seconds: float | None = None) -> CallContext:
        """Who is behind an attempt's token."""
        return await self._post("/gateway/resolve", request, CallContext, patience_seconds)

    async def commit_generations(
        self, items: Sequence[GenerationRecord], *, patience_seconds: float | None = None
    ) -> list[CommitResult]:
        """Record model calls. Time that passes here counts into how long ago they began."""
        started = time.monotonic()

        def body() -> bytes:
            waited = time.monotonic() - started
            aged = [item.model_copy(update={"duration_seconds": item.duration_seconds + waited}) for item in items]
            return to_json(GenerationBatch.model_construct(items=aged))

        return (await self._send("POST", "/gateway/generations", body, CommitResults, patience_seconds)).items

    async def record_call_failures(
        self, items: Sequence[CallFailure], *, patience_seconds: float | None = None
    ) -> None:
        """Record calls that the platform failed."""
        await self._post("/gateway/failures", FailureBatch(items=list(items)), Nothing, patience_seconds)

    async def mark_delivered(self, items: Sequence[DeliveryMark], *, patience_seconds: float | None = None) -> None:
        """Record whether answers reached the agent."""
        await self._post("/gateway/delivered", DeliveryBatch(items=list(items)), Nothing, patience_seconds)

    async def engines(self, run: str, *, patience_seconds: float | None = None) -> list[EngineInfo]:
        """Engines of a run that take calls."""
        answer = await self._send("GET", "/engines", None, EngineList, patience_seconds, params={"run": run})
        return answer.items

    async def register_worker(self, worker: WorkerReport, *, patience_seconds: float | None = None) -> None:
        """Record a process, or that it is still there."""
        await self._post("/workers", worker, Nothing, patience_seconds)

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=256, keepalive_timeout=4),  # uvicorn closes idle ones after 5 s
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
                headers=self._headers,
            )
            self._sessions[loop] = session
        return session

    async def _post(self, path: str, body: BaseModel, answer: type[Answer], patience_seconds: float | None) -> Answer:
        return await self._send("POST", path, to_json(body), answer, patience_seconds)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | Callable[[], bytes] | None,
        answer: type[Answer],
        patience_seconds: float | None,
        params: dict[str, str] | None = None,
    ) -> Answer:
        """Send until there is an answer or patience ends.

        Raises:
            RelightError: the service refused it.
            StoreError: no answer for `patience_seconds`.
        """
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        deadline = time.monotonic() + patience
        pause = FIRST_PAUSE_SECONDS
        while True:
            content = body() if callable(body) else body
            try:
                status, raw = await self._once(method, path, content, params)
                if status not in AWAY:
                    return _read(status, raw, answer)
                reason = error_of(status, raw).message
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() + pause > deadline:
                raise StoreError(f"no answer from the store service at {self.url} for {patience:g} s: {reason}")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _once(
        self, method: str, path: str, content: bytes | None, params: dict[str, str] | None
    ) -> tuple[int, bytes]:
        url = f"{self.url}{PREFIX}{path}"
        headers = JSON if content is not None else None
        async with self._session().request(method, url, data=content, params=params, headers=headers) as response:
            return response.status, await response.read()


def _read(status: int, raw: bytes, answer: type[Answer]) -> Answer:
    if status != 200:
        raise error_of(status, raw)
    try:
        return answer.model_validate_json(raw)
    except ValidationError as error:
        raise StoreError(f"the store service's answer makes no sense: {error}") from error


def to_json(body: BaseModel) -> bytes:
    """A body as JSON, also where an agent's text can't be encoded as it is."""
    try:
        return body.model_dump_json().encode()
    except PydanticSerializationError:  # lone surrogates, and values that are no JSON
        clean = type(body).model_construct(**storable(body.model_dump()))
        return clean.model_dump_json(warnings=False).encode()
