"""Spans by OTLP, over HTTP into Postgres."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from relight.store.database import Database
from relight.store.queue.reads import query_spans
from relight.types.queries import SpanQuery
from relight.types.tracer import Span
from tests.support.otlp import JSON, PROTOBUF, OtlpClient, key_values, make_request, make_span


async def stored(database: Database, rollout_id: str = "r1") -> list[Span]:
    return list(await query_spans(database, SpanQuery(rollout_id=rollout_id)))


def own_number(number: int | str) -> dict[str, Any]:
    """An attribute by which a resource numbers its spans."""
    return {"agentlightning.span_sequence_id": number}


async def test_a_span_is_stored_with_all_its_fields(database: Database, client: OtlpClient) -> None:
    span = make_span(
        1,
        {
            "text": "a",
            "int": 2**62,
            "float": 0.5,
            "bool": False,
            "none": None,
            "bytes": b"\xff",
            "list": [1, {"k": "v"}],
        },
        parent_span_id=b"\x07" * 8,
        trace_state="vendor=x,other=y",
        kind=ProtoSpan.SPAN_KIND_CLIENT,
        status=Status(code=Status.STATUS_CODE_ERROR, message="broke"),
        events=[ProtoSpan.Event(name="e", time_unix_nano=1_500_000_000, attributes=key_values({"k": 1}))],
        links=[ProtoSpan.Link(trace_id=b"\x02" * 16, span_id=b"\x03" * 8, attributes=key_values({"l": True}))],
    )
    assert await client.rejected(make_request([span], host="h")) == (0, "")
    context = {"trace_id": "01" * 16, "span_id": "0" * 15 + "1", "is_remote": False}
    assert await stored(database) == [
        Span(
            rollout_id="r1",
            attempt_id="a1",
            sequence_id=1,
            trace_id="01" * 16,
            span_id="0" * 15 + "1",
            parent_id="07" * 8,
            name="span 1",
            status={"status_code": "ERROR", "description": "broke"},
            attributes={
                "text": "a",
                "int": 2**62,
                "float": 0.5,
                "bool": False,
                "none": None,
                "bytes": "ff",
                "list": [1, {"k": "v"}],
            },
            events=[{"name": "e", "timestamp": 1.5, "attributes": {"k": 1}}],
            links=[
                {
                    "context": {"trace_id": "02" * 16, "span_id": "03" * 8, "is_remote": False, "trace_state": {}},
                    "attributes": {"l": True},
                }
            ],
            start_time=span.start_time_unix_nano / 1e9,
            end_time=span.end_time_unix_nano / 1e9,
            context=context | {"trace_state": {"vendor": "x", "other": "y"}},
            resource={
                "attributes": {"agentlightning.rollout_id": "r1", "agentlightning.attempt_id": "a1", "host": "h"},
                "schema_url": "",
            },
            kind="CLIENT",  # pyright: ignore[reportCallIssue]  # 0.3 keeps what it does not know
        )
    ]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_compressed_requests_are_accepted(database: Database, client: OtlpClient, encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding]
    body = make_request([make_span(1), make_span(2)]).SerializeToString()
    assert await client.rejected(pack(body), **{"Content-Encoding": encoding}) == (0, "")
    assert [span.sequence_id for span in await stored(database)] == [1, 2]


async def test_answers_are_compressed_if_the_client_accepts_it(client: OtlpClient) -> None:
    response, body = await client.post(make_request([make_span(1)]), {**PROTOBUF, "Accept-Encoding": "gzip"})
    assert (response.headers["Content-Encoding"], body) == ("gzip", b"")
    response, _ = await client.post(make_request([make_span(2)]), {**PROTOBUF, "Accept-Encoding": "identity"})
    assert "Content-Encoding" not in response.headers


async def test_json_is_accepted_and_answered_in_json(database: Database, client: OtlpClient) -> None:
    ids = [
        {"key": f"agentlightning.{kind}_id", "value": {"stringValue": f"{kind[0]}1"}} for kind in ("rollout", "attempt")
    ]
    good = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "parentSpanId": "eee19b7ec3c1b173",
        "name": "json",
        "kind": 3,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": 1544712661000000000,
        "attributes": [{"key": "n", "value": {"intValue": "5"}}, {"key": "d", "value": {"doubleValue": 1.5}}],
        "links": [{"traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174"}],
        "unknownField": 1,
    }
    bad = good | {"spanId": "short"}
    body = {"resourceSpans": [{"resource": {"attributes": ids}, "scopeSpans": [{"spans": [good, bad, 5]}]}]}
    response, answer = await client.post(orjson.dumps(body), JSON)
    assert (response.status, response.content_type) == (200, "application/json")
    assert orjson.loads(answer)["partialSuccess"]["rejectedSpans"] == "2"
    [span] = await stored(database)
    assert (span.trace_id, span.span_id, span.parent_id) == (good["traceId"], good["spanId"], good["parentSpanId"])
    assert (span.attributes, span.start_time, span.end_time) == ({"n": 5, "d": 1.5}, 1544712660.0, 1544712661.0)
    assert span.links[0].context.span_id == good["spanId"]


async def test_attributes_of_a_span_override_those_of_its_resource(database: Database, client: OtlpClient) -> None:
    own = {
        "agentlightning.rollout_id": "r2",
        "agentlightning.attempt_id": "a2",
        "agentlightning.span_sequence_id": "41",
    }
    request = make_request([make_span(1), make_span(2, own)], **own_number(7))
    assert await client.rejected(request) == (0, "")
    assert [span.sequence_id for span in await stored(database)] == [7]
    assert [span.sequence_id for span in await stored(database, "r2")] == [41]


@pytest.mark.parametrize("number", [-5, "-1", "x", ""])
async def test_a_sequence_id_that_is_none_is_issued(database: Database, client: OtlpClient, number: int | str) -> None:
    request = make_request([make_span(1), make_span(2)], **own_number(number))
    assert await client.rejected(request) == (0, "")
    assert [span.sequence_id for span in await stored(database)] == [1, 2]


async def test_spans_that_cannot_be_kept_are_counted_and_the_rest_is_stored(
    database: Database, client: OtlpClient
) -> None:
    request = make_request([make_span(1), make_span(2, span_id=b"short"), make_span(3, trace_id=b"")])
    request.MergeFrom(make_request([make_span(4)], rollout_id=None))
    request.MergeFrom(make_request([make_span(5)], attempt_id="a2"))
    request.MergeFrom(make_request([make_span(6)], rollout_id="unknown"))
    request.MergeFrom(make_request([make_span(7)]))
    count, reason = await client.rejected(request)
    assert count == 5
    assert "2 x a span's span_id" in reason
    assert "2 x a span's rollout or attempt is unknown" in reason
    assert "1 x a span has no agentlightning.rollout_id" in reason
    assert [span.name for span in await stored(database)] == ["span 1", "span 7"]


async def test_a_request_that_comes_twice_is_stored_once_and_nothing_is_rejected(
    database: Database, client: OtlpClient
) -> None:
    request = make_request([make_span(1), make_span(2)])
    assert [await client.rejected(request) for _ in range(2)] == [(0, ""), (0, "")]
    assert len(await stored(database)) == 2


async def test_an_empty_request_succeeds(client: OtlpClient) -> None:
    assert await client.rejected(b"") == (0, "")


TORN_GZIP = gzip.compress(b"a" * 100, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "text/plain"}, b""),
        ({"Content-Type": "application/x-protobuf"}, b"\xff\xff"),
        ({"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}, b"no gzip"),
        ({"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}, TORN_GZIP),
        ({"Content-Type": "application/x-protobuf", "Content-Encoding": "br"}, b"x"),
        ({"Content-Type": "application/json"}, b"{"),
        ({"Content-Type": "application/json"}, b"[]"),
        ({"Content-Type": "application/json"}, b'{"resourceSpans":[5]}'),
    ],
)
async def test_what_is_no_request_is_refused_in_its_own_encoding(
    client: OtlpClient, headers: dict[str, str], body: bytes
) -> None:
    response, answer = await client.post(body, headers)
    assert response.status == 400
    if headers["Content-Type"] == "application/json":
        assert orjson.loads(answer)["code"] == 3
    else:
        assert ExportTracePartialSuccess.FromString(answer).rejected_spans == 3  # google.rpc.Status' code


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs", "/v1/development/profiles"])
async def test_other_signals_are_not_implemented(client: OtlpClient, path: str) -> None:
    response, answer = await client.post(b"", path=path)
    assert (response.status, ExportTracePartialSuccess.FromString(answer).rejected_spans) == (501, 12)
    response, answer = await client.post(b"{}", JSON, path=path)
    assert (response.status, orjson.loads(answer)["code"]) == (501, 12)
