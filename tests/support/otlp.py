"""OTLP requests for tests: built message by message, sent over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import ClientResponse, ClientSession
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


def any_value(value: Any) -> AnyValue:
    """A Python value as OTLP has it."""
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case Mapping():
            return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
        case Sequence():
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))
        case _:
            raise TypeError(type(value))


def key_values(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Attributes as OTLP has them."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def make_span(number: int, attributes: Mapping[str, Any] | None = None, **fields: Any) -> Span:
    """A span with an id of its own."""
    values: dict[str, Any] = {
        "trace_id": b"\x01" * 16,
        "span_id": number.to_bytes(8, "big"),
        "name": f"span {number}",
        "start_time_unix_nano": 1_700_000_000_000_000_000 + number,
        "end_time_unix_nano": 1_700_000_001_000_000_000 + number,
    }
    return Span(**(values | fields), attributes=key_values(attributes or {}))


def make_request(
    spans: Sequence[Span], rollout_id: str | None = "r1", attempt_id: str | None = "a1", **resource: Any
) -> ExportTraceServiceRequest:
    """Spans of one attempt, which the resource names."""
    ids = {"agentlightning.rollout_id": rollout_id, "agentlightning.attempt_id": attempt_id}
    attributes = {key: value for key, value in ids.items() if value is not None} | resource
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(resource=Resource(attributes=key_values(attributes)), scope_spans=[ScopeSpans(spans=spans)])
        ]
    )


def raw_field(number: int, data: bytes) -> bytes:
    """A field as it is on the wire: for messages that protobuf itself would not write."""
    size, found = len(data), bytearray([number << 3 | 2])
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size]) + data


class OtlpClient:
    """Posts to `/v1/traces`."""

    def __init__(self, session: ClientSession, url: str, token: str) -> None:
        self.session = session
        self.url = url
        self.token = token

    async def post(
        self,
        body: bytes | ExportTraceServiceRequest,
        headers: Mapping[str, str] = PROTOBUF,
        *,
        path: str = "/v1/traces",
    ) -> tuple[ClientResponse, bytes]:
        """The answer and its body."""
        data = body if isinstance(body, bytes) else body.SerializeToString()
        sent = {"Authorization": f"Bearer {self.token}", **headers}
        async with self.session.post(self.url + path, data=data, headers=sent) as response:
            return response, await response.read()

    async def rejected(self, body: bytes | ExportTraceServiceRequest, **headers: str) -> tuple[int, str]:
        """How many spans of a protobuf request were rejected, and why; it is understood."""
        response, answer = await self.post(body, {**PROTOBUF, **headers})
        assert response.status == 200, answer
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
        return partial.rejected_spans, partial.error_message
