"""OpenTelemetry's `ReadableSpan` as a span of ours. Reads its attributes only: OpenTelemetry's SDK is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.types.store import Span, SpanStatus

NANOSECONDS = 1e9
STATUS_CODES = ("UNSET", "OK", "ERROR")


def span_of(rollout_id: str, attempt_id: str, sequence_id: int, readable: Any) -> Span:
    """Convert a span that has ended, or is under way."""
    context, parent = readable.context, readable.parent
    code = str(getattr(readable.status.status_code, "name", readable.status.status_code))
    return Span.model_validate(
        {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence_id,
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "parent_id": f"{parent.span_id:016x}" if parent else None,
            "name": readable.name,
            "status": SpanStatus(
                status_code=code if code in STATUS_CODES else "UNSET",  # type: ignore[arg-type]
                description=readable.status.description,
            ),
            "attributes": _plain(readable.attributes),
            "events": [
                {"name": event.name, "attributes": _plain(event.attributes), "timestamp": _seconds(event.timestamp)}
                for event in readable.events
            ],
            "links": [
                {"context": _context(link.context), "attributes": _plain(link.attributes)} for link in readable.links
            ],
            "start_time": _seconds(readable.start_time),
            "end_time": _seconds(readable.end_time),
            "context": _context(context),
            "parent": _context(parent) if parent else None,
            "resource": {
                "attributes": _plain(readable.resource.attributes),
                "schema_url": getattr(readable.resource, "schema_url", "") or "",
            },
        }
    )


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NANOSECONDS


def _context(context: Any) -> dict[str, Any]:
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "is_remote": bool(context.is_remote),
        "trace_state": dict(context.trace_state or {}),
    }
