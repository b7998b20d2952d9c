"""The span processor that gives the spans of OpenTelemetry's SDK to their attempts.

The attempt of a span is fixed when it starts: that of the context, else that of the parent span, else the only one of
the process. A span that could be of several attempts is counted on each of them and dropped; where there is no attempt
at all it goes to the span queue, if there is one.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from relight.emitter.foreign_spans import from_opentelemetry
from relight.emitter.scope import Scope, context_scope, count_dropped, only_scope

_SCOPE = "_relight_scope"
"""The attribute of a span that holds its scope, for its children."""
MAX_UNDER_WAY = 100_000
"""Beyond it the oldest are taken for spans that never end."""


class AttemptSpanProcessor(SpanProcessor):
    """Sends each sampled span, when it ends, to the attempt in which it started."""

    def __init__(self) -> None:
        self.open_queue: Callable[[], SpanProcessor | None] | None = None
        """Opens the queue for spans that are of no attempt, when the first one ends: its thread must not be made in a
        process that others are forked from.
        """
        self._queue: SpanProcessor | None = None
        self._opening = threading.Lock()
        self._scopes: dict[int, Scope | None] = {}
        """Of the spans under way, by span id: `on_end` gets a copy of the span."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        parent = trace.get_current_span(parent_context)
        scope = context_scope() or getattr(parent, _SCOPE, None) or only_scope()
        setattr(span, _SCOPE, scope)
        self._scopes[span.get_span_context().span_id] = scope
        if len(self._scopes) > MAX_UNDER_WAY:
            with suppress(RuntimeError, KeyError):  # another thread adds or removes one
                self._scopes.pop(next(iter(self._scopes)))

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None:
            return
        scope = self._scopes.pop(context.span_id, None)
        if not context.trace_flags.sampled:
            return
        if scope is not None:
            scope.sink(from_opentelemetry(span))
        elif not count_dropped() and (queue := self._opened()) is not None:
            queue.on_end(span)

    def _opened(self) -> SpanProcessor | None:
        with self._opening:
            if self._queue is None and self.open_queue is not None:
                self._queue, self.open_queue = self.open_queue(), None
                if self._queue is not None:
                    atexit.register(self._queue.shutdown)  # it exports what waits
            return self._queue

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._queue is None or self._queue.force_flush(timeout_millis)


@cache
def processor() -> AttemptSpanProcessor:
    """The processor of this process: one, however many providers there are."""
    return AttemptSpanProcessor()


def provider() -> TracerProvider:
    """The global provider of the SDK, made if there is none; it has the processor."""
    _follow_later_providers()
    current = trace.get_tracer_provider()
    if not isinstance(current, TracerProvider):
        if not _own:  # else the global one is of another kind, which stays
            _own.append(TracerProvider())
            trace.set_tracer_provider(_own[0])
        current = _own[0]
    _attach(current)
    return current


_own: list[TracerProvider] = []
"""The provider that was made here, which one of the agent's may replace."""


def _attach(current: TracerProvider) -> None:
    if not getattr(current, "_relight_attached", False):
        current.add_span_processor(processor())
        current._relight_attached = True  # type: ignore[attr-defined]


@cache
def _follow_later_providers() -> None:
    """Attach to providers that are set from now on, and let the first of them replace one that was made here.

    OpenTelemetry has no hook for this; `set_tracer_provider` calls this function of its module however it was imported.
    """
    set_provider = trace._set_tracer_provider  # type: ignore[attr-defined]

    def followed(tracer_provider: Any, log: bool) -> None:
        if _own and trace.get_tracer_provider() is _own[0] and tracer_provider is not _own[0]:
            _own.clear()
            trace._TRACER_PROVIDER_SET_ONCE._done = False  # type: ignore[attr-defined]
        set_provider(tracer_provider, log)
        if isinstance(current := trace.get_tracer_provider(), TracerProvider):
            _attach(current)

    trace._set_tracer_provider = followed  # type: ignore[attr-defined]
