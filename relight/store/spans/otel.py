"""OpenTelemetry's `ReadableSpan` as a span of the rollout store."""

from __future__ import annotations

from typing import Any

from relight.emitter.foreign_spans import context_of, from_opentelemetry, plain, seconds
from relight.types.store import Span, SpanStatus


def span_of(rollout_id: str, attempt_id: str, sequence_id: int, readable: Any) -> Span:
    """Convert a span that has ended, or is under way."""
    core = dict(from_opentelemetry(readable))
    status = {"status_code": core.pop("status"), "description": core.pop("status_description")}
    return Span.model_validate(
        {
            **core,
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence_id,
            "status": SpanStatus.model_validate(status),
            "start_time": seconds(readable.start_time),
            "context": context_of(readable.context),
            "parent": context_of(readable.parent) if readable.parent else None,
            "resource": {
                "attributes": plain(readable.resource.attributes),
                "schema_url": getattr(readable.resource, "schema_url", "") or "",
            },
        }
    )
