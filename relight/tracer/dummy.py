"""A tracer that records what emitters make, and nothing else."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from relight.emitter.plain_spans import PlainSpan, create_plain_span, plain_operation
from relight.tracer.base import Tracer
from relight.types.tracer import SpanCoreFields, TraceStatus


class DummyTracer(Tracer):
    """Makes the spans of emitters without OpenTelemetry. Calls of instrumented libraries leave none."""

    def create_span(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        return create_plain_span(name, attributes, time.time() if timestamp is None else timestamp, status)

    def operation_context(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[PlainSpan]:
        return plain_operation(name, attributes, start_time, end_time)
