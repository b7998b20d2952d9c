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
from relight.emitter.recorder import EmittedSpan, make_span

NANOSECONDS = 1e9
MAX_NAME_CHARACTERS = 256
STATUS_CODES = ("UNSET", "OK", "ERROR")


def field_of(item: Any, name: str, default: Any = None) -> Any:
    """A field of an object, or of a dictionary."""
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item).get(name, default)
    return getattr(item, name, default)


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
    context, parent = readable.context, readable.parent
    made = make_span(readable.name, {})
    status, description = _status(readable.status)
    started = seconds(readable.start_time)
    return EmittedSpan(
        trace_id=f"{context.trace_id:032x}" if context else made["trace_id"],
        span_id=f"{context.span_id:016x}" if context else made["span_id"],
        parent_id=f"{parent.span_id:016x}" if parent else None,
        name=readable.name,
        status=status or "UNSET",
        status_description=description,
        attributes=plain(readable.attributes),
        events=[
            {"name": event.name, "attributes": plain(event.attributes), "timestamp": seconds(event.timestamp)}
            for event in readable.events
        ],
        links=[{"context": context_of(link.context), "attributes": plain(link.attributes)} for link in readable.links],
        start_time=time.time() if started is None else started,
        end_time=seconds(readable.end_time),
    )


def plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Attributes as JSON values."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}


def seconds(nanoseconds: int | None) -> float | None:
    """OpenTelemetry's time as Unix seconds."""
    return None if nanoseconds is None else nanoseconds / NANOSECONDS


def context_of(context: Any) -> dict[str, Any]:
    """OpenTelemetry's context of a span, with its ids as text."""
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "is_remote": bool(context.is_remote),
        "trace_state": dict(context.trace_state or {}),
    }


def _from_fields(item: Any) -> EmittedSpan:
    span = make_span(field_of(item, "name"), field_of(item, "attributes") or {})
    given = cast("dict[str, Any]", span)
    for name in ("trace_id", "span_id", "parent_id"):
        value = field_of(item, name) or field_of(field_of(item, "context"), name)
        if isinstance(value, str) and value:
            given[name] = clean_text(value.removeprefix("0x"), 64)
    for name in ("events", "links"):
        given[name] = _listed(field_of(item, name))
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
