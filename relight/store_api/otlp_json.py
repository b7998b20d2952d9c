"""Converts OTLP's JSON for protobuf's JSON parser: OTLP writes ids in hexadecimal, protobuf bytes in base64."""

from __future__ import annotations

from base64 import b64encode
from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Iterator
from typing import Any, cast

import orjson

from relight.errors import InvalidRequestError
from relight.store_api.otlp_wire import TooLargeError

Object = dict[str, Any]
MOST_VALUES = 400_000
"""Objects and lists in a body; each takes microseconds and a hundred bytes, in as few as two."""
IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


def json_spans(data: bytes, most: int) -> Iterator[tuple[Object, str, list[Any]]]:
    """Resource, schema URL and spans of each part of a request that has any.

    Raises:
        InvalidRequestError: it is not a trace request.
        TooLargeError: it has more than `most` spans, or so many values that parsing would take minutes.
    """
    if data.count(b"{") + data.count(b"[") > MOST_VALUES:
        raise TooLargeError("the body has too many values; send fewer at a time")
    try:
        request = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    for part in _objects(request, "resourceSpans"):
        spans = [_span(span) for scope in _objects(part, "scopeSpans") for span in _list(scope, "spans")]
        most -= len(spans)
        if most < 0:
            raise TooLargeError("the body has too many spans; send fewer at a time")
        if not spans:
            continue
        resource, schema_url = part.get("resource"), part.get("schemaUrl")
        yield resource if isinstance(resource, dict) else {}, schema_url if isinstance(schema_url, str) else "", spans


def _list(parent: Any, name: str) -> list[Any]:
    found = cast("Object", parent).get(name) if isinstance(parent, dict) else ...
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidRequestError(f"the body is not an ExportTraceServiceRequest: {name} is not a list of objects")
    return cast("list[Any]", found)


def _objects(parent: Any, name: str) -> list[Object]:
    found = _list(parent, name)
    if not all(isinstance(item, dict) for item in found):
        raise InvalidRequestError(f"the body is not an ExportTraceServiceRequest: {name} is not a list of objects")
    return found


def _span(span: Any) -> Any:
    """A span with ids in base64; an invalid span is left to the parser."""
    if not isinstance(span, dict):
        return span
    changed = _with_ids(cast("Object", span))
    links = changed.get("links")
    if isinstance(links, list):
        items = cast("list[Any]", links)
        changed["links"] = [_with_ids(cast("Object", link)) if isinstance(link, dict) else link for link in items]
    return changed


def _with_ids(value: Object) -> Object:
    return {key: _base64(item) if key in IDS else item for key, item in value.items()}


def _base64(value: Any) -> Any:
    try:
        return b64encode(unhexlify(value)).decode() if isinstance(value, str) else value
    except (HexError, ValueError):
        return None  # an id that is none is as good as missing
