"""Converts spans of other libraries: OpenTelemetry's `ReadableSpan`, and objects with the fields of a stored span.

It reads attributes only, so neither OpenTelemetry's SDK nor the store's types are imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import orjson

from relight.emitter.attributes import as_json, clean_text, flatten
from relight.emitter.scope import EmittedSpan, make_span, new_span_id, new_trace_id
from relight.types.otel_spans import fields_of

MAX_NAME_CHARACTERS = 256
STATUS_CODES = ("UNSET", "OK", "ERROR")


def field_of(item: Any, name: str, default: Any = None) -> Any:
    """A field of an object, or of a dictionary."""
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item).get(name, default)
    return getattr(item, name, default)


def id_of(span: Any, name: str) -> str | None:
    """A span's `trace_id` or `span_id` in hexadecimal."""
    value = _of_context(span, name)
    if isinstance(value, int):
        return f"{value:0{32 if name == 'trace_id' else 16}x}"
    return value if isinstance(value, str) else None


def _of_context(span: Any, name: str) -> Any:
    """A field of a span, or of its context."""
    return field_of(span, name) or field_of(field_of(span, "context"), name)


def as_emitted(item: Any) -> EmittedSpan:
    """A span as an agent's process sends it; fields that are missing are filled in."""
    span = from_opentelemetry(item) if _is_opentelemetry(item) else _from_fields(item)
    span["name"] = clean_text(span["name"], MAX_NAME_CHARACTERS)
    span["attributes"] = flatten(span["attributes"])
    return span


def _is_opentelemetry(item: Any) -> bool:
    """OpenTelemetry's ids are numbers, and its times count nanoseconds. One that was made by hand may have no ids."""
    return isinstance(field_of(field_of(item, "context"), "trace_id"), int) or (
        hasattr(item, "instrumentation_scope") and hasattr(item, "get_span_context")
    )


def from_opentelemetry(readable: Any) -> EmittedSpan:
    """A `ReadableSpan` that has ended, or is under way."""
    span = fields_of(readable)
    if span["trace_id"] is None:
        span["trace_id"], span["span_id"] = new_trace_id(), new_span_id()
    if span["start_time"] is None:
        span["start_time"] = time.time()
    return cast("EmittedSpan", span)


def _from_fields(item: Any) -> EmittedSpan:
    span = make_span(field_of(item, "name"), field_of(item, "attributes") or {})
    given = cast("dict[str, Any]", span)
    for name in ("trace_id", "span_id", "parent_id"):
        value = _of_context(item, name)
        if isinstance(value, str) and value:
            given[name] = clean_text(value.removeprefix("0x"), 64)
    for name in ("events", "links"):
        given[name] = _listed(field_of(item, name))
    for event in span["events"]:
        event["timestamp"] = _unix_seconds(event.get("timestamp"))
    if (start := _unix_seconds(field_of(item, "start_time"))) is not None:
        span["start_time"] = start
    span["end_time"] = _unix_seconds(field_of(item, "end_time", span["end_time"]))
    status, description = _status(field_of(item, "status"))
    span["status"] = status or span["status"]
    span["status_description"] = description or field_of(item, "status_description")
    return span


def _unix_seconds(time: Any) -> float | None:
    """A time in seconds, or as ISO 8601 text, which OpenTelemetry's `to_json` writes."""
    if isinstance(time, str):
        try:
            return datetime.fromisoformat(time).timestamp()
        except ValueError:
            return None
    return float(time) if isinstance(time, int | float) else None


def _status(status: Any) -> tuple[str | None, str | None]:
    """Code and description; without a code if it is not one of OpenTelemetry's."""
    code = status if isinstance(status, str) else field_of(status, "status_code")
    name, description = str(field_of(code, "name", code)), field_of(status, "description")
    return name if name in STATUS_CODES else None, None if description is None else clean_text(str(description))


def _listed(items: Any) -> list[dict[str, Any]]:
    """Events or links; those that JSON can't represent are left out."""
    found: list[dict[str, Any]] = []
    for item in cast("list[Any]", items) if isinstance(items, list | tuple) else []:
        dump = field_of(item, "model_dump")
        text = as_json(dump(mode="json") if callable(dump) else item)
        if text is not None and isinstance(value := orjson.loads(text), dict):
            found.append(cast("dict[str, Any]", value))
    return found
