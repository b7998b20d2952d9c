"""Converts OTLP trace requests, in protobuf or JSON, to rows of spans and counts of rejected ones.

Spans are converted one at a time, directly to the columns of their row. The attributes `agentlightning.rollout_id`,
`.attempt_id` and `.span_sequence_id` of the span, or else of the resource, name its attempt; with an attempt's token,
the token does. Independent of HTTP.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from relight.observability.redaction import Redactor
from relight.semconv import AGENTOPS_REWARDS, REWARD_OF_0_2, LightningResourceAttributes, LightningSpanAttributes
from relight.store.spans.rows import EMPTY_OBJECT, MAX_SEQUENCE_ID, Packer, SpanRow
from relight.store_api.agent_tokens import AuthenticatedAttempt
from relight.store_api.otlp_json import json_spans
from relight.store_api.otlp_wire import split_spans

ROLLOUT_ID = LightningResourceAttributes.ROLLOUT_ID.value
ATTEMPT_ID = LightningResourceAttributes.ATTEMPT_ID.value
SEQUENCE_ID = LightningResourceAttributes.SPAN_SEQUENCE_ID.value
REWARD_PREFIX = f"{LightningSpanAttributes.REWARD}."
EARLIER_REWARDS = frozenset({*AGENTOPS_REWARDS, REWARD_OF_0_2})
CLAIMED = "relight.claimed."
"""Prefix of rewards that an agent gave itself although it has a grader: they are not read as rewards."""
MAX_SPANS = 20_000
MAX_SPAN_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 32
"""Values nested deeper are replaced by a text that says so."""
TOO_DEEP = "[nested too deeply]"
STATUS_NAMES = {0: "UNSET", 1: "OK", 2: "ERROR"}
STATUSES = {code: f'{{"status_code":"{name}","description":null}}' for code, name in STATUS_NAMES.items()}
KINDS = {2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
"""Other values are ignored."""
NANOSECONDS = 1e9
UNPARSABLE = (DecodeError, ParseError, ValueError, TypeError, AttributeError, RecursionError)
"""All exceptions of protobuf's readers; those of JSON raise most of them."""
Parse = Callable[[Any, Any], Any]
"""Fills a message from bytes or JSON, and returns it."""
OTHER_ATTEMPT = "a span is of another attempt than the token"


class RejectedSpanError(ValueError):
    """A span that can't be kept, and why."""


@dataclass
class Decoded:
    """The spans of a request."""

    rows: list[SpanRow] = field(default_factory=list[SpanRow])
    rejected: Counter[str] = field(default_factory=Counter[str])
    """Numbers of invalid spans by reason."""


def decode_protobuf(data: bytes, redactor: Redactor, agent: AuthenticatedAttempt | None = None) -> Decoded:
    """Rows of a protobuf request.

    Raises:
        InvalidRequestError: it is not a trace request, or too large.
    """
    return _decode(split_spans(data, MAX_SPANS), _parse_bytes, redactor, agent)


def decode_json(data: bytes, redactor: Redactor, agent: AuthenticatedAttempt | None = None) -> Decoded:
    """Rows of a JSON request.

    Raises:
        InvalidRequestError: it is not a trace request, or too large.
    """
    return _decode(json_spans(data, MAX_SPANS), partial(ParseDict, ignore_unknown_fields=True), redactor, agent)


def _decode(
    parts: Iterable[tuple[Any, str, list[Any]]], parse: Parse, redactor: Redactor, agent: AuthenticatedAttempt | None
) -> Decoded:
    reader = SpanReader(parse, redactor, agent)
    for resource, schema_url, spans in parts:
        try:
            parsed = parse(resource, Resource())
        except UNPARSABLE:
            reader.reject("the resource is malformed", len(spans))
            continue
        reader.enter_resource(parsed, schema_url)
        for span in spans:
            reader.read(span)
    return reader.decoded


def _parse_bytes(data: bytes, message: Any) -> Any:
    message.ParseFromString(data)
    return message


class SpanReader:
    """Turns the spans of a request into rows, resource after resource."""

    def __init__(self, parse: Parse, redactor: Redactor, agent: AuthenticatedAttempt | None) -> None:
        self.decoded = Decoded()
        self._parse = parse
        self._redactor = redactor
        self._agent = agent
        self._names: dict[str, str] = {}
        self._ids: Mapping[str, Any] = {}
        self._resource = EMPTY_OBJECT
        self._resource_packer = Packer(redactor)

    def reject(self, reason: str, count: int = 1) -> None:
        """Count spans that can't be kept."""
        self.decoded.rejected[reason] += count

    def enter_resource(self, resource: Resource, schema_url: str) -> None:
        """Set the resource of the following spans."""
        attributes = attributes_of(resource.attributes)
        self._ids = attributes
        self._resource_packer = packer = Packer(self._redactor)
        value = {"attributes": attributes, "schema_url": schema_url}
        self._resource = packer.pack("resource", value, EMPTY_OBJECT) or EMPTY_OBJECT

    def read(self, span: bytes | Any) -> None:
        """A span as protobuf, or as JSON with its ids in base64."""
        if isinstance(span, bytes) and len(span) > MAX_SPAN_BYTES:
            self.reject(f"a span is larger than {MAX_SPAN_BYTES} bytes")
            return
        try:
            self.decoded.rows.append(self._row(self._parse(span, ProtoSpan())))
        except RejectedSpanError as error:
            self.reject(str(error))
        except UNPARSABLE:
            self.reject("a span is malformed")

    def _row(self, span: ProtoSpan) -> SpanRow:
        span_id, trace_id, parent_id = span.span_id, span.trace_id, span.parent_span_id
        if len(span_id) != 8 or len(trace_id) != 16:
            raise RejectedSpanError("a span's span_id is not of 8 bytes, or its trace_id not of 16")
        attributes = attributes_of(span.attributes)
        rollout_id, attempt_id, sequence_id = self._whose(attributes)
        if self._agent and self._agent.graded:
            attributes = disclaimed(attributes)
        packer = Packer(self._redactor)
        packed = packer.pack_attributes(attributes)
        events = packer.pack("events", [_event(event) for event in span.events]) if span.events else None
        links = packer.pack("links", [_link(link) for link in span.links]) if span.links else None
        extra = packer.pack("extra", _extra(span)) if span.trace_state or span.kind in KINDS else None
        packer.refs.update(self._resource_packer.refs)
        return SpanRow(
            rollout_id,
            attempt_id,
            span_id.hex(),
            sequence_id,
            trace_id.hex(),
            parent_id.hex() or None,
            self._name(span.name),
            self._status(span),
            packed,
            events,
            links,
            self._resource,
            extra,
            _seconds(span.start_time_unix_nano),
            _seconds(span.end_time_unix_nano),
            packer.packed_refs(),
            packer.bodies + self._resource_packer.bodies,
        )

    def _whose(self, attributes: Mapping[str, Any]) -> tuple[str, str, int]:
        rollout_id = attributes.get(ROLLOUT_ID) or self._ids.get(ROLLOUT_ID)
        attempt_id = attributes.get(ATTEMPT_ID) or self._ids.get(ATTEMPT_ID)
        agent = self._agent
        if agent:
            if (rollout_id or agent.rollout_id, attempt_id or agent.attempt_id) != (agent.rollout_id, agent.attempt_id):
                raise RejectedSpanError(OTHER_ATTEMPT)
            rollout_id, attempt_id = agent.rollout_id, agent.attempt_id
        if not isinstance(rollout_id, str) or not isinstance(attempt_id, str):
            raise RejectedSpanError(f"a span has no {ROLLOUT_ID} and {ATTEMPT_ID}")
        wanted = attributes.get(SEQUENCE_ID)
        sequence_id = _sequence_id(self._ids.get(SEQUENCE_ID) if wanted is None else wanted)
        return rollout_id.replace("\x00", ""), attempt_id.replace("\x00", ""), sequence_id

    def _name(self, name: str) -> str:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = self._redactor.text(name).replace("\x00", "\ufffd")
        return known

    def _status(self, span: ProtoSpan) -> str:
        code, message = span.status.code, span.status.message
        if not message:
            return STATUSES.get(code, STATUSES[0])
        value = {"status_code": STATUS_NAMES.get(code, "UNSET"), "description": message.replace("\x00", "\ufffd")}
        return self._redactor.json(orjson.dumps(value)).decode()


def attributes_of(pairs: Iterable[Any]) -> dict[str, Any]:
    """Attributes as a dictionary; of a duplicate name, the last one."""
    found: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        kind = value.WhichOneof("value")
        found[pair.key] = value.string_value if kind == "string_value" else any_value(value, kind)
    return found


def any_value(value: Any, kind: str | None, depth: int = 0) -> Any:
    """An OTLP value as JSON: bytes in hexadecimal, NaN and infinity as text."""
    if kind is None:
        return None
    if kind == "double_value":
        number = value.double_value
        return number if math.isfinite(number) else str(number)
    if kind == "bytes_value":
        return value.bytes_value.hex()
    if depth >= MAX_DEPTH and kind in ("array_value", "kvlist_value"):
        return TOO_DEEP
    if kind == "array_value":
        return [any_value(item, item.WhichOneof("value"), depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        pairs = value.kvlist_value.values
        return {pair.key: any_value(pair.value, pair.value.WhichOneof("value"), depth + 1) for pair in pairs}
    return getattr(value, kind)


def disclaimed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with rewards renamed, so that readers don't find them."""
    return {
        f"{CLAIMED}{key}" if key.startswith(REWARD_PREFIX) or key in EARLIER_REWARDS else key: value
        for key, value in attributes.items()
    }


def _sequence_id(value: Any) -> int:
    """-1 where one is to be issued."""
    if value is None:
        return -1
    try:
        number = int(str(value))
    except ValueError:
        return -1
    if number > MAX_SEQUENCE_ID:
        raise RejectedSpanError(f"a span's {SEQUENCE_ID} is above {MAX_SEQUENCE_ID}")
    return max(number, -1)


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / NANOSECONDS if nanoseconds else None


def _event(event: Any) -> dict[str, Any]:
    return {
        "name": event.name,
        "attributes": attributes_of(event.attributes),
        "timestamp": _seconds(event.time_unix_nano),
    }


def _link(link: Any) -> dict[str, Any]:
    context = {
        "trace_id": link.trace_id.hex(),
        "span_id": link.span_id.hex(),
        "is_remote": False,
        "trace_state": _trace_state(link.trace_state),
    }
    return {"context": context, "attributes": attributes_of(link.attributes) or None}


def _extra(span: ProtoSpan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if span.kind in KINDS:
        found["kind"] = KINDS[span.kind]
    if span.trace_state:
        found["context"] = {
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "is_remote": False,
            "trace_state": _trace_state(span.trace_state),
        }
    return found


def _trace_state(text: str) -> dict[str, str]:
    members = (member.partition("=") for member in text.split(",") if "=" in member)
    return {key.strip(): value.strip() for key, _, value in members}
