"""Whatever is sent by OTLP: it is answered with 200, 400, 413 or 503, what was accepted is there, and the next good
request works.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import orjson
import pytest
from aiohttp import ClientSession
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.queue.reads import query_spans
from relight.types.queries import SpanQuery
from relight.types.tracer import Span
from tests.support.examples import examples
from tests.support.otlp import JSON, PROTOBUF, OtlpClient, key_values, make_request, make_span, raw_field
from tests.support.postgres import fresh_database
from tests.support.seeds import seed_attempt, seed_rollout
from tests.support.store_service import TOKEN, store_service

Result = TypeVar("Result")
FINE = {200, 400, 413, 503}
NANOSECONDS = st.sampled_from([0, 1, 10**18, 2**63, 2**64 - 1])
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | TEXT
    | st.binary(max_size=20)
    | st.just("long " * 1000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)

ATTRIBUTES = st.dictionaries(TEXT, VALUES, max_size=4)


@dataclass
class Bench:
    """A service that lives as long as all examples of a property, and numbers for spans."""

    runner: asyncio.Runner
    database: Database
    client: OtlpClient
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def run(self, do: Callable[[], Awaitable[Result]]) -> Result:
        """Run, and post a good span afterwards, which must be there then."""

        async def whole() -> Result:
            result = await do()
            good = make_span(next(self.numbers))
            assert await self.client.rejected(make_request([good], "r2", "a2")) == (0, "")
            assert await self.find(good.span_id.hex()) is not None
            return result

        return self.runner.run(whole())

    async def find(self, span_id: str) -> Span | None:
        """A span that is stored."""
        queries = [SpanQuery(rollout_id=rollout_id, span_id=span_id) for rollout_id in ("r1", "r2")]
        found = [span for query in queries for span in await query_spans(self.database, query)]
        return found[0] if found else None


@pytest.fixture(scope="module")
def bench(postgres_url: str) -> Generator[Bench]:
    """With the attempts a1 of r1 and a2 of r2."""
    with asyncio.Runner() as runner:
        opening = fresh_database(postgres_url)
        database = runner.run(opening.__aenter__())
        for number in (1, 2):
            runner.run(seed_rollout(database, f"r{number}", None))
            runner.run(seed_attempt(database, f"r{number}", f"a{number}"))
        serving = store_service(runner.run(PostgresStore.create(database, "http://gateway")), database)
        url = runner.run(serving.__aenter__())
        session = runner.run(_session())
        yield Bench(runner, database, OtlpClient(session, url, TOKEN))
        runner.run(session.close())
        runner.run(serving.__aexit__(None, None, None))
        runner.run(opening.__aexit__(None, None, None))


async def _session() -> ClientSession:
    return ClientSession()


@st.composite
def spans(draw: st.DrawFn) -> ProtoSpan:
    """A span of any content; its id is given to it later."""
    return make_span(
        0,
        draw(ATTRIBUTES),
        trace_id=draw(st.sampled_from([b"\x01" * 16, b"\x00" * 16, b"short", b""])),
        parent_span_id=draw(st.sampled_from([b"", b"\x01" * 8, b"\x00" * 8, b"odd"])),
        trace_state=draw(TEXT),
        name=draw(TEXT),
        kind=draw(st.integers(0, 9)),
        start_time_unix_nano=draw(NANOSECONDS),
        end_time_unix_nano=draw(NANOSECONDS),
        status=Status(code=cast(Any, draw(st.integers(0, 5))), message=draw(TEXT)),
        events=[
            ProtoSpan.Event(name=draw(TEXT), time_unix_nano=draw(NANOSECONDS), attributes=key_values(draw(ATTRIBUTES)))
        ],
        links=[ProtoSpan.Link(trace_id=b"x", span_id=b"", attributes=key_values(draw(ATTRIBUTES)))],
    )


@st.composite
def requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    """Some spans, of a known or an unknown attempt."""
    request = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(0, 3))):
        owner = draw(st.sampled_from([("r1", "a1"), ("r1", "a2"), (None, "a1"), ("", ""), ("\x00", "a1")]))
        part = make_request(draw(st.lists(spans(), max_size=3)), *owner)
        part.resource_spans[0].resource.attributes.extend(key_values(draw(ATTRIBUTES)))
        request.MergeFrom(part)
    return request


def numbered(bench: Bench, request: ExportTraceServiceRequest) -> list[str]:
    """The ids of a request's spans, new ones."""
    found: list[str] = []
    for part in request.resource_spans:
        for span in part.scope_spans[0].spans:
            span.span_id = next(bench.numbers).to_bytes(8, "big")
            found.append(span.span_id.hex())
    return found


@given(request=requests())
@settings(max_examples=examples(80))
def test_every_span_that_is_not_rejected_is_stored(bench: Bench, request: ExportTraceServiceRequest) -> None:
    ids = numbered(bench, request)

    async def send() -> tuple[int, int]:
        rejected, _ = await bench.client.rejected(request)
        return rejected, sum([await bench.find(span_id) is not None for span_id in ids])

    rejected, stored = bench.run(send)
    assert stored == len(ids) - rejected


@given(
    request=requests(), flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=8)
)
@settings(max_examples=examples(80))
def test_flipped_bytes_break_nothing(
    bench: Bench, request: ExportTraceServiceRequest, flips: list[tuple[int, int]]
) -> None:
    numbered(bench, request)
    body = bytearray(request.SerializeToString() or b"\x00")
    for position, mask in flips:
        body[position % len(body)] ^= mask

    async def send() -> int:
        response, _ = await bench.client.post(bytes(body))
        return response.status

    assert bench.run(send) in FINE


@given(
    body=st.binary(max_size=200),
    kind=st.sampled_from([PROTOBUF, JSON]),
    encoding=st.sampled_from(["gzip", "deflate", ""]),
)
@settings(max_examples=examples(60))
def test_random_bytes_break_nothing(bench: Bench, body: bytes, kind: dict[str, str], encoding: str) -> None:
    headers = {**kind, **({"Content-Encoding": encoding} if encoding else {})}

    async def send() -> int:
        response, _ = await bench.client.post(body, headers)
        return response.status

    assert bench.run(send) in FINE


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mangled(draw: st.DrawFn) -> Any:
    """A JSON request in which some values are others."""
    value: Any = MessageToDict(draw(requests()))

    def mangle(item: Any) -> Any:
        if draw(st.integers(0, 30)) == 0:
            return draw(JSON_VALUES)
        if isinstance(item, dict):
            return {key: mangle(inner) for key, inner in item.items()}
        return [mangle(inner) for inner in item] if isinstance(item, list) else item

    return mangle(value)


@given(value=mangled())
@settings(max_examples=examples(60))
def test_json_of_any_shape_breaks_nothing(bench: Bench, value: Any) -> None:
    async def send() -> int:
        response, _ = await bench.client.post(_json(value), JSON)
        return response.status

    assert bench.run(send) in FINE


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # integers that orjson can't write
        return repr(value).encode()


def nested(depth: int) -> Any:
    """A value as deep as that."""
    value: Any = "deep"
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


FIXED: dict[str, ProtoSpan] = {
    "nul": make_span(0, {"a\x00b": "c\x00d", "list": ["\x00"]}, name="\x00", trace_state="\x00=\x00"),
    "no numbers": make_span(0, {"nan": math.nan, "inf": math.inf, "list": [-math.inf]}),
    "large numbers": make_span(0, {"most": 2**63 - 1, "least": -(2**63)}),
    "many attributes": make_span(0, {f"key {n}": n for n in range(10_000)}),
    "deep": make_span(0, {"deep": nested(20)}),
    "no clock": make_span(0, start_time_unix_nano=0, end_time_unix_nano=0),
    "clock of 2554": make_span(0, start_time_unix_nano=2**64 - 1, end_time_unix_nano=1),
    "long name": make_span(0, name="n" * 100_000),
    "large": make_span(0, {"text": "much " * 400_000}),
}


@pytest.mark.parametrize("case", FIXED)
def test_odd_spans_are_kept(bench: Bench, case: str) -> None:
    span = ProtoSpan.FromString(FIXED[case].SerializeToString())
    span.span_id = next(bench.numbers).to_bytes(8, "big")

    async def send() -> Span | None:
        assert await bench.client.rejected(make_request([span])) == (0, "")
        return await bench.find(span.span_id.hex())

    kept = bench.run(send)
    assert kept is not None
    assert len(kept.attributes) == len(span.attributes)


def test_values_deeper_than_protobuf_parses_cost_their_span_alone(bench: Bench) -> None:
    value = b""
    for _ in range(1000):
        value = raw_field(5, raw_field(1, value))
    beside = make_span(next(bench.numbers))
    deep = raw_field(9, raw_field(1, b"key") + raw_field(2, value))
    whole = make_request([beside]).SerializeToString() + raw_field(1, raw_field(2, raw_field(2, deep)))

    async def send() -> tuple[int, str]:
        return await bench.client.rejected(whole)

    assert bench.run(send) == (1, "1 x a span is malformed")
    assert bench.runner.run(bench.find(beside.span_id.hex())) is not None


def test_a_cycle_of_parents_is_kept_as_it_is(bench: Bench) -> None:
    first, second, own = (next(bench.numbers).to_bytes(8, "big") for _ in range(3))
    given_spans = [
        make_span(0, span_id=first, parent_span_id=second),
        make_span(0, span_id=second, parent_span_id=first),
        make_span(0, span_id=own, parent_span_id=own),
    ]

    async def send() -> list[str | None]:
        assert await bench.client.rejected(make_request(given_spans)) == (0, "")
        return [kept.parent_id if (kept := await bench.find(span.span_id.hex())) else "" for span in given_spans]

    assert bench.run(send) == [second.hex(), first.hex(), own.hex()]


@pytest.mark.parametrize("depth", [200, 5000, 100_000])
def test_deeply_nested_json_breaks_nothing(bench: Bench, depth: int) -> None:
    value = b'{"arrayValue":{"values":[' * depth + b'{"intValue":1}' + b"]}}" * depth
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"k","value":' + value + b"}]}]}]}]}"

    async def send() -> int:
        response, _ = await bench.client.post(body, JSON)
        return response.status

    assert bench.run(send) in {200, 400}


def test_a_sequence_id_out_of_range_is_rejected(bench: Bench) -> None:
    span = make_span(next(bench.numbers), {"agentlightning.span_sequence_id": 2**62})

    async def send() -> tuple[int, str]:
        return await bench.client.rejected(make_request([span]))

    assert bench.run(send)[0] == 1
