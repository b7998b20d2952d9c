"""Spans that no library for tracing makes."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from relight.emitter.attributes import exception_attributes, safe_text
from relight.emitter.scope import EmittedSpan, Status, as_parent, make_span, send
from relight.semconv import AGL_EXCEPTION
from relight.types.tracer import SpanCoreFields, TraceStatus


def core_fields(span: EmittedSpan) -> SpanCoreFields:
    """What its creator gets of a span."""
    status = TraceStatus.model_validate({"status_code": span["status"], "description": span["status_description"]})
    return SpanCoreFields(
        name=span["name"],
        status=status,
        attributes=span["attributes"],
        start_time=span["start_time"],
        end_time=span["end_time"],
    )


def create_plain_span(
    name: str,
    attributes: dict[str, Any] | None = None,
    timestamp: float | None = None,
    status: TraceStatus | None = None,
    *,
    propagate: bool = True,
) -> SpanCoreFields:
    """Make and send a span that starts and ends at this time (Unix seconds), or now. Its status is OK unless given."""
    span = make_span(name, attributes or {}, at=timestamp)
    if status is not None:
        span["status"], span["status_description"] = status.status_code, status.description
    return core_fields(send(span, propagate))


class PlainSpan:
    """A span under way: a `SpanRecordingContext`."""

    def __init__(self, span: EmittedSpan) -> None:
        self.span = span

    def record_exception(self, exception: BaseException, at: float | None = None) -> None:
        """Record an exception as an event of this time (Unix seconds), or now, and set the status ERROR."""
        timestamp = time.time() if at is None else at
        event = {"name": AGL_EXCEPTION, "timestamp": timestamp, "attributes": exception_attributes(exception)}
        self.span["events"].append(event)
        self.record_status("ERROR", safe_text(exception))

    def record_attributes(self, attributes: dict[str, Any]) -> None:
        """Add attributes."""
        self.span["attributes"].update(attributes)

    def record_status(self, status_code: Status, description: str | None = None) -> None:
        """Set the status."""
        self.span["status"], self.span["status_description"] = status_code, description

    def get_recorded_span(self) -> SpanCoreFields:
        """What was recorded so far; it has no end before the block's end."""
        return core_fields(self.span)


@contextmanager
def plain_operation(
    name: str,
    attributes: dict[str, Any] | None = None,
    start_time: float | None = None,
    end_time: float | None = None,
    *,
    propagate: bool = True,
) -> Generator[PlainSpan]:
    """A span around a block, sent at its end. Times are Unix seconds."""
    span = make_span(name, dict(attributes or {}), at=start_time)
    span["end_time"] = None
    recorded, failure = PlainSpan(span), None
    try:
        with as_parent(span["span_id"]):
            yield recorded
    except BaseException as error:
        failure = error
        raise
    finally:
        end = time.time() if end_time is None else end_time
        span["end_time"] = end = max(end, span["start_time"])  # the clock may have been set
        if failure is not None:
            recorded.record_exception(failure, end)
        send(span, propagate)
