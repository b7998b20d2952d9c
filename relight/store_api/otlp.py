"""OTLP over HTTP: POST /v1/traces, in protobuf or JSON, answered after the spans are committed.

Bodies may be gzip or deflate; their inflated size is limited while they are inflated. Spans that can't be stored are
counted in `partial_success`. Requests under way are limited in bytes and in spans; beyond that the answer is 503 with
Retry-After, not 429, after which exporters drop the spans. The other signals get a 501.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import orjson
from fastapi import APIRouter, Request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from relight.errors import ForbiddenError, InvalidRequestError, OverloadedError, RelightError
from relight.store.spans.ingest import SpanOutcome, SpanSink
from relight.store.spans.rows import SpanRow
from relight.store_api.agent_tokens import AGENT_KEY, AuthenticatedAttempt
from relight.store_api.grants import foreign_rollouts
from relight.store_api.otlp_spans import OTHER_ATTEMPT, Decoded, decode_json, decode_protobuf
from relight.store_api.otlp_wire import TooLargeError
from relight.store_api.problems import RETRY_AFTER_SECONDS
from relight.transport.byte_budgets import ByteBudget, held_bytes

Made = TypeVar("Made")
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
MAX_BYTES = 32 * 1024 * 1024
"""The limit of a body, as received and inflated."""
MAX_JSON_BYTES = 8 * 1024 * 1024
"""The limit of a JSON body, inflated; parsed it takes many times that."""
MAX_TOTAL_BYTES = 96 * 1024 * 1024
"""The limit of all bodies under way."""
INLINE_BYTES = 256 * 1024
"""Larger and compressed bodies are parsed in a thread, one at a time, so that they don't block the event loop."""
CHUNK_ROWS = 2000
"""Rows of one body that share a transaction."""
OTHER_RUN = "a span is of another run than the token"
UNKNOWN = 2
STATUS_CODES = {400: 3, 403: 7, 413: 8, 501: 12, 503: 14}
"""google.rpc's codes of the errors of this route."""
MAX_REASONS = 5
IDENTITY = "identity"
WINDOW_BITS = {"gzip": 31, "deflate": 47}
"""zlib's; deflate is what zlib writes, or gzip by mistake."""
OTHER_SIGNALS = ("/v1/metrics", "/v1/logs", "/v1/development/profiles")
router = APIRouter(tags=["otlp"])


class Otlp:
    """Parses trace requests and stores their spans."""

    def __init__(self, ingest: SpanSink, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.ingest = ingest
        self.budget = ByteBudget(max_total_bytes, _too_much_under_way)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otlp")

    async def export(self, request: Request) -> tuple[int, str]:
        """Store the spans of a request; returns how many were rejected, and why.

        Raises:
            InvalidRequestError: it is not a trace request, or too large.
            ForbiddenError: all its spans are of other attempts than its token.
            OverloadedError: too many requests are under way.
        """
        kind = content_type(request)
        if kind not in (PROTOBUF, JSON):
            raise InvalidRequestError(f"Content-Type {kind!r} is not one of {PROTOBUF} and {JSON}")
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        agent: AuthenticatedAttempt | None = request.scope.get(AGENT_KEY)
        with held_bytes(self.budget) as take:
            body = await _read(request, take)
            if encoding != IDENTITY:
                most = MAX_BYTES if kind == PROTOBUF else MAX_JSON_BYTES
                body = await self._in_thread(lambda: inflate(body, encoding, most))
                take(len(body))
            decoded = await self._decode(body, kind, agent)
            await _reject_foreign(request, decoded)
            if not decoded.rows and decoded.rejected and set(decoded.rejected) <= {OTHER_ATTEMPT, OTHER_RUN}:
                raise ForbiddenError(f"this token is not good for these spans: {'; '.join(decoded.rejected)}")
            rejected = decoded.rejected + refusals(await self._keep(decoded.rows))
        self.ingest.count({"malformed": decoded.rejected.total()})
        return rejected.total(), "; ".join(f"{count} x {reason}" for reason, count in rejected.most_common(MAX_REASONS))

    async def aclose(self) -> None:
        """Wait for requests under way."""
        await self.ingest.aclose()
        self._thread.shutdown()

    async def _decode(self, body: bytes, kind: str, agent: AuthenticatedAttempt | None) -> Decoded:
        if kind == JSON and len(body) > MAX_JSON_BYTES:
            raise TooLargeError(f"the body is larger than {MAX_JSON_BYTES} bytes; send less at a time")
        decode = decode_protobuf if kind == PROTOBUF else decode_json
        if len(body) <= INLINE_BYTES:
            return decode(body, self.ingest.redactor, agent)
        return await self._in_thread(lambda: decode(body, self.ingest.redactor, agent))

    async def _in_thread(self, make: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._thread, make)

    async def _keep(self, rows: list[SpanRow]) -> list[SpanOutcome]:
        outcomes: list[SpanOutcome] = []
        for start in range(0, len(rows), CHUNK_ROWS):
            outcomes += await self.ingest.submit(rows[start : start + CHUNK_ROWS])
        return outcomes


def _too_much_under_way(limit: int) -> OverloadedError:
    return OverloadedError(f"spans under way take {limit} bytes already; try again shortly")


async def _reject_foreign(request: Request, decoded: Decoded) -> None:
    """With a token of one run, leave out spans of others."""
    foreign = await foreign_rollouts(request, {row.rollout_id for row in decoded.rows})
    kept = [row for row in decoded.rows if row.rollout_id not in foreign]
    if foreign:
        decoded.rejected[OTHER_RUN] += len(decoded.rows) - len(kept)
        decoded.rows = kept


async def _read(request: Request, take: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BYTES:
            raise TooLargeError(f"the body is larger than {MAX_BYTES} bytes; send less at a time")
        take(len(chunk))
        parts.append(chunk)
    return b"".join(parts)


def inflate(body: bytes, encoding: str, most: int) -> bytes:
    """Inflate a body, to at most `most` bytes.

    Raises:
        InvalidRequestError: it can't be inflated.
        TooLargeError: it would be larger.
    """
    if encoding not in WINDOW_BITS:
        raise InvalidRequestError(f"Content-Encoding {encoding!r} is not one of gzip, deflate and identity")
    stream = zlib.decompressobj(WINDOW_BITS[encoding])
    try:
        data = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise InvalidRequestError(f"the body can't be inflated: {error}") from error
    if len(data) > most:
        raise TooLargeError(f"the body is larger than {most} bytes when inflated; send less at a time")
    if not stream.eof or stream.unused_data:
        raise InvalidRequestError("the body can't be inflated: it is truncated, or has data after its end")
    return data


def refusals(outcomes: Iterable[SpanOutcome]) -> Counter[str]:
    """The numbers of rejected spans by reason; duplicates are not counted."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.state == "unknown":
            found["a span's rollout or attempt is unknown"] += 1
        elif outcome.state == "rejected":
            found[f"a span can't be stored: {outcome.reason}"] += 1
    return found


def content_type(request: Request) -> str:
    """The media type of a request, without parameters."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def success(request: Request, rejected: int, reason: str) -> Response:
    """The answer to a request that was understood."""
    if content_type(request) == JSON:
        partial = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": reason}} if rejected else {}
        return _answer(request, 200, orjson.dumps(partial))
    if not rejected:
        return _answer(request, 200, b"")
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=reason)
    return _answer(request, 200, ExportTraceServiceResponse(partial_success=partial).SerializeToString())


def failure(request: Request, status: int, message: str) -> Response:
    """A google.rpc.Status in the request's encoding."""
    code = STATUS_CODES.get(status, UNKNOWN)
    if content_type(request) == JSON:
        return _answer(request, status, orjson.dumps({"code": code, "message": message}))
    # On the wire a Status is a number and a text, in the fields of this message.
    return _answer(
        request, status, ExportTracePartialSuccess(rejected_spans=code, error_message=message).SerializeToString()
    )


def _answer(request: Request, status: int, body: bytes) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    accepted = request.headers.get("accept-encoding", "")
    if "gzip" in {part.split(";")[0].strip().lower() for part in accepted.split(",")}:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, 1)
    return Response(body, status, headers, JSON if content_type(request) == JSON else PROTOBUF)


@router.post("/v1/traces", response_class=Response)
async def export_traces(request: Request) -> Response:
    """Store spans, in OpenTelemetry's protocol."""
    otlp: Otlp = request.app.state.otlp
    try:
        rejected, reason = await otlp.export(request)
    except InvalidRequestError as error:
        return failure(request, 413 if isinstance(error, TooLargeError) else 400, error.message)
    except RelightError as error:
        return failure(request, error.http_status, error.message)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected
    return success(request, rejected, reason)


async def _refuse_signal(request: Request) -> Response:
    """Refuse other signals than traces."""
    return failure(request, 501, "only traces are kept here; send them to /v1/traces")


for _path in OTHER_SIGNALS:
    router.add_api_route(_path, _refuse_signal, methods=["POST"], response_class=Response, include_in_schema=False)
