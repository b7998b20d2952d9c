"""Too much at once: 503 with Retry-After, memory bounded, and nothing lost that was acknowledged."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncGenerator

import pytest
from aiohttp import ClientSession
from fastapi import FastAPI
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from relight.errors import OverloadedError
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.spans.ingest import SpanIngest
from relight.store.spans.rows import SpanRow
from relight.store_api import otlp
from relight.store_api.otlp import MAX_BYTES, MAX_JSON_BYTES, inflate
from relight.store_api.otlp_spans import MAX_SPANS, decode_protobuf
from relight.store_api.otlp_wire import TooLargeError
from tests.support.otlp import JSON, PROTOBUF, OtlpClient, make_request, make_span, raw_field
from tests.support.seeds import seed_attempt, seed_rollout
from tests.support.store_service import TOKEN, store_service

SMALL_BUDGET = 100_000


@pytest.fixture
async def busy_client(database: Database) -> AsyncGenerator[OtlpClient]:
    """A service that takes 100 kB at once."""

    def prepare(app: FastAPI) -> None:
        app.state.otlp = otlp.Otlp(app.state.backend.spans, SMALL_BUDGET)

    await seed_rollout(database, "r1", None)
    await seed_attempt(database, "r1", "a1")
    store = await PostgresStore.create(database, "http://gateway")
    async with store_service(store, database, prepare=prepare) as url, ClientSession() as session:
        yield OtlpClient(session, url, TOKEN)


async def test_requests_over_the_limit_get_a_retry_after_and_accepted_spans_are_stored(
    database: Database, busy_client: OtlpClient
) -> None:
    def request(number: int) -> bytes:
        spans = [make_span(number * 100 + index, {"text": "x" * 500}) for index in range(40)]
        return make_request(spans).SerializeToString()

    answers = await asyncio.gather(*(busy_client.post(request(number)) for number in range(60)))
    statuses = [response.status for response, _ in answers]
    assert set(statuses) == {200, 503}
    assert {response.headers.get("Retry-After") for response, _ in answers} == {None, "1"}
    assert await database.pool.fetchval("select count(*) from spans") == 40 * statuses.count(200)
    for number, status in enumerate(statuses):
        if status == 503:
            assert await busy_client.rejected(request(number)) == (0, "")
    assert await database.pool.fetchval("select count(*) from spans") == 40 * 60


async def test_waiting_spans_are_bounded(database: Database) -> None:
    await seed_rollout(database, "r1", None)
    await seed_attempt(database, "r1", "a1")
    ingest = SpanIngest(database, max_group=10, max_waiting=30)

    def rows(number: int) -> list[SpanRow]:
        request = make_request([make_span(number * 10 + index) for index in range(10)])
        return decode_protobuf(request.SerializeToString(), ingest.redactor).rows

    results = await asyncio.gather(*(ingest.submit(rows(number)) for number in range(8)), return_exceptions=True)
    kept = [result for result in results if not isinstance(result, BaseException)]
    assert {type(result) for result in results} == {list, OverloadedError}
    assert await database.pool.fetchval("select count(*) from spans") == 10 * len(kept)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compression_bomb_is_refused_before_it_is_inflated(client: OtlpClient, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    bomb = pack(b"\0" * 400 * 2**20)
    tracemalloc.start()
    try:
        for headers in (PROTOBUF, JSON):
            response, _ = await client.post(bomb, {**headers, "Content-Encoding": encoding})
            assert response.status == 413
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BYTES
    finally:
        tracemalloc.stop()
    assert await client.rejected(make_request([make_span(1)])) == (0, "")


def test_a_body_is_inflated_up_to_its_limit() -> None:
    data = b"a" * 1000
    assert inflate(gzip.compress(data), "gzip", 1000) == data
    with pytest.raises(TooLargeError):
        inflate(gzip.compress(data), "gzip", 999)


async def test_bodies_beyond_their_limits_are_refused(client: OtlpClient) -> None:
    response, _ = await client.post(b"\0" * (MAX_BYTES + 1))
    assert response.status == 413
    response, _ = await client.post(b" " * (MAX_JSON_BYTES + 1), JSON)
    assert response.status == 413
    response, _ = await client.post(b'{"a":[' + b"{}," * 500_000 + b"{}]}", JSON)
    assert response.status == 413


@pytest.mark.parametrize("fill", [b"\x12\x00", b"\x18\x00", b"\x0a\x00"])
async def test_a_request_of_millions_of_tiny_parts_is_refused_in_a_moment(client: OtlpClient, fill: bytes) -> None:
    inner = fill * 2**22  # 8 MiB: empty spans, unknown field numbers, empty scopes
    body = raw_field(1, raw_field(2, inner))
    tracemalloc.start()
    try:
        async with asyncio.timeout(20):
            response, _ = await client.post(body)
        assert response.status == 413
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BYTES
    finally:
        tracemalloc.stop()


async def test_more_spans_than_a_request_may_have_are_refused(client: OtlpClient) -> None:
    request = make_request([])
    spans = ScopeSpans(spans=[Span(name="s")] * (MAX_SPANS + 1))
    request.resource_spans.append(ResourceSpans(scope_spans=[spans]))
    response, _ = await client.post(request)
    assert response.status == 413
