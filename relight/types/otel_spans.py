"""Reads OpenTelemetry's `ReadableSpan` into JSON values, in the form of the store's `Span`.

Only attributes of the objects are read, so OpenTelemetry's SDK is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NANOSECONDS = 1e9
INTERNAL = "INTERNAL"
"""The kind of spans that name none."""


def fields_of(readable: Any) -> dict[str, Any]:
    """All of a span that has ended, or is under way; without ids if it was made by hand without them."""
    context, parent = readable.context, readable.parent
    status = readable.status
    fields: dict[str, Any] = {
        "trace_id": f"{context.trace_id:032x}" if context else None,
        "span_id": f"{context.span_id:016x}" if context else None,
        "parent_id": f"{parent.span_id:016x}" if parent else None,
        "name": readable.name,
        "status": status.status_code.name,
        "status_description": status.description,
        "attributes": plain(readable.attributes),
        "events": [event_of(event) for event in readable.events],
        "links": [link_of(link) for link in readable.links],
        "start_time": seconds(readable.start_time),
        "end_time": seconds(readable.end_time),
        "resource": resource_of(readable.resource),
        "extra": extra_of(readable),
    }
    return fields


def extra_of(readable: Any) -> dict[str, Any]:
    """What the store keeps of a span beside its columns: exact times, and what is not as usual."""
    extra: dict[str, Any] = {}
    context, parent, kind = readable.context, readable.parent, readable.kind.name
    if readable.start_time is not None:
        extra["start_time_unix_nano"] = readable.start_time
    if readable.end_time is not None:
        extra["end_time_unix_nano"] = readable.end_time
    if kind != INTERNAL:
        extra["kind"] = kind
    if context is not None and context.trace_state:
        extra["context"] = context_of(context)
    if parent is not None and (parent.is_remote or parent.trace_state):
        extra["parent"] = context_of(parent)
    return extra


def plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Attributes as JSON values."""
    if not attributes:
        return {}
    own = getattr(attributes, "_dict", attributes)  # the SDK's mapping takes a lock for each key
    return {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}


def seconds(nanoseconds: int | None) -> float | None:
    """OpenTelemetry's time as Unix seconds."""
    return None if nanoseconds is None else nanoseconds / NANOSECONDS


def context_of(context: Any) -> dict[str, Any]:
    """The context of a span, with its ids as text."""
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "is_remote": bool(context.is_remote),
        "trace_state": dict(context.trace_state) if context.trace_state else {},
    }


def event_of(event: Any) -> dict[str, Any]:
    """An event of a span."""
    times = {} if event.timestamp is None else {"time_unix_nano": event.timestamp}
    return {
        "name": event.name,
        "attributes": plain(event.attributes),
        "timestamp": seconds(event.timestamp),
        **times,
    }


def link_of(link: Any) -> dict[str, Any]:
    """A link of a span to another."""
    return {"context": context_of(link.context), "attributes": plain(link.attributes) or None}


_last_resource: tuple[Any, dict[str, Any]] = (None, {"attributes": {}, "schema_url": ""})
"""All spans of a provider have one resource: what it is as JSON is kept."""


def resource_of(resource: Any) -> dict[str, Any]:
    """The resource of a span: what its process says of itself. Not to be changed."""
    global _last_resource
    known, found = _last_resource
    if resource is not known:
        found = _resource_of(resource)
        _last_resource = resource, found
    return found


def _resource_of(resource: Any) -> dict[str, Any]:
    if resource is None:
        return {"attributes": {}, "schema_url": ""}
    return {"attributes": plain(resource.attributes), "schema_url": getattr(resource, "schema_url", "") or ""}
