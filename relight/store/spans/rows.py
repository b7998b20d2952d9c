"""Converts spans to rows and back.

Large values are stored in `bodies` by content hash, once a day, since a model's messages are repeated with every turn.
The row keeps their hashes, under the field's name or, for attributes, the attribute's.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from relight.errors import InvalidRequestError
from relight.observability.redaction import Redactor
from relight.store.generations import COMPRESSION, to_json, unpack_body
from relight.store.storable import STATUS_CODES, UNSET, storable, storable_text, storable_time
from relight.types.tracer import Span, as_plain

LARGE_BYTES = 2048
"""The maximum size of a row's field; beyond it, parts or all of it become bodies."""
PART_BYTES = 1024
"""An attribute above this size becomes a body if the attributes together are large."""
MAX_SEQUENCE_ID = 2**53
EMPTY_OBJECT = "{}"
ESCAPED_NUL = b"\\u0000"
Body = tuple[bytes, bytes]
"""Hash and compressed JSON."""


class SpanRow(NamedTuple):
    """A span as `ingest_spans_v1` takes it; JSON as text."""

    rollout_id: str
    attempt_id: str
    span_id: str
    sequence_id: int
    """Below 0: one is to be issued."""
    trace_id: str
    parent_id: str | None
    name: str
    status: str
    attributes: str
    events: str | None
    """None: there are none."""
    links: str | None
    resource: str
    extra: str | None
    start_time: float | None
    end_time: float | None
    refs: str | None
    """Hashes of what is in `bodies`."""
    bodies: Sequence[Body]


_JSON = ("status", "attributes", "events", "links", "resource", "extra", "refs")
"""Columns of a row that are JSON."""


class Packer:
    """Converts one span's fields to redacted JSON, and large values to bodies."""

    __slots__ = ("bodies", "redactor", "refs")

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.bodies: list[Body] = []
        self.refs: dict[str, Any] = {}

    def pack(self, field: str, value: Any, empty: str | None = None) -> str | None:
        """A field as JSON, or `empty` if it has become a body."""
        text = self.redactor.json(dump(value))
        if len(text) <= LARGE_BYTES:
            return text.decode()
        self.refs[field] = self._keep(text)
        return empty

    def pack_attributes(self, attributes: Mapping[str, Any]) -> str:
        """Attributes as JSON; the large ones become bodies."""
        text = self.redactor.json(dump(attributes))
        if len(text) <= LARGE_BYTES:
            return text.decode()
        small: dict[str, Any] = {}
        large: dict[str, str] = {}
        for key, value in orjson.loads(text).items():
            part = dump(value)
            if len(part) > PART_BYTES:
                large[key] = self._keep(part)
            else:
                small[key] = value
        if large:
            self.refs["attributes"] = large
        return dump(small).decode()

    def packed_refs(self) -> str | None:
        """The hashes as JSON."""
        return dump(self.refs).decode() if self.refs else None

    def _keep(self, text: bytes) -> str:
        digest = sha256(text)
        self.bodies.append((digest.digest(), zlib.compress(text, COMPRESSION)))
        return digest.hexdigest()


def dump(value: Any) -> bytes:
    """JSON that Postgres can store."""
    text = to_json(value)
    return to_json(storable(value)) if ESCAPED_NUL in text else text


def row_of(span: Span, redactor: Redactor) -> SpanRow:
    """A span as a row.

    Raises:
        InvalidRequestError: its sequence id is too large, or a value can't be stored.
    """
    check_sequence_id(span)
    try:
        return _row(span, Packer(redactor), redactor)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"span {span.span_id}: {error.message}") from error


def check_sequence_id(span: Span) -> None:
    """Refuse a number after which too few are left.

    Raises:
        InvalidRequestError: it is too large.
    """
    if span.sequence_id > MAX_SEQUENCE_ID:
        raise InvalidRequestError(f"sequence_id {span.sequence_id} of span {span.span_id} is above {MAX_SEQUENCE_ID}")


def _row(span: Span, packer: Packer, redactor: Redactor) -> SpanRow:
    beside = {"context": as_plain(span.context), "parent": as_plain(span.parent)}
    extra = {key: value for key, value in beside.items() if value is not None} | (span.model_extra or {})
    return SpanRow(
        rollout_id=storable_text(span.rollout_id),
        attempt_id=storable_text(span.attempt_id),
        span_id=storable_text(redactor.text(span.span_id)),
        sequence_id=span.sequence_id,
        trace_id=storable_text(redactor.text(span.trace_id)),
        parent_id=None if span.parent_id is None else storable_text(redactor.text(span.parent_id)),
        name=storable_text(redactor.text(span.name)),
        status=redactor.json(dump(storable(as_plain(span.status), "status"))).decode(),
        attributes=packer.pack_attributes(storable(span.attributes, "attributes")),
        events=packer.pack("events", storable(as_plain(span.events), "events")) if span.events else None,
        links=packer.pack("links", storable(as_plain(span.links), "links")) if span.links else None,
        resource=packer.pack("resource", storable(as_plain(span.resource), "resource"), EMPTY_OBJECT) or EMPTY_OBJECT,
        extra=packer.pack("extra", storable(extra, "extra")) if extra else None,
        start_time=storable_time(span.start_time),
        end_time=storable_time(span.end_time),
        refs=packer.packed_refs(),
        bodies=packer.bodies,
    )


def span_of_row(row: SpanRow) -> Span:
    """A row that was never stored as a span."""
    fields = {name: value for name, value in row._asdict().items() if name not in _JSON}
    fields |= {name: orjson.loads(value) for name in _JSON if (value := getattr(row, name)) is not None}
    fields |= {"bodies": fields.pop("refs", None), "extra": fields.get("extra")}
    return span_of_fields(fields, {digest.hex(): unpack_body(body) for digest, body in row.bodies})


def digests_of(refs: Mapping[str, Any] | None) -> list[str]:
    """The hashes of a row's bodies."""
    if not refs:
        return []
    fields = [digest for name, digest in refs.items() if name != "attributes"]
    return [*fields, *refs.get("attributes", {}).values()]


def span_of_fields(fields: dict[str, Any], bodies: Mapping[str, Any]) -> Span:
    """A span from its columns, and from values by hash."""
    refs, extra = fields.pop("bodies") or {}, fields.pop("extra")
    if fields["status"].get("status_code") not in STATUS_CODES:
        fields["status"] = {**fields["status"], "status_code": UNSET}
    for field, digest in refs.items():
        if field == "attributes":
            large = {key: bodies[part] for key, part in digest.items()}
            fields["attributes"] = {**fields["attributes"], **large}
        elif field == "extra":
            extra = bodies[digest]
        else:
            fields[field] = bodies[digest]
    return Span.model_validate({**(extra or {}), **fields})
