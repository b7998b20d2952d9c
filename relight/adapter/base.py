"""The base of adapters, and spans of other libraries as the store's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from relight.emitter.foreign_spans import as_emitted
from relight.types.tracer import Span

T_from = TypeVar("T_from")
T_to = TypeVar("T_to")


class Adapter(Generic[T_from, T_to]):
    """Converts data by its method `adapt`; it can also be called like a function. Source: Agent Lightning 0.3."""

    def __call__(self, source: T_from, /) -> T_to:
        return self.adapt(source)

    def adapt(self, source: T_from, /) -> T_to:
        """Convert the data. Subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has to define adapt(source)")


class TraceAdapter(Adapter[Sequence[Span], T_to], Generic[T_to]):
    """Converts the spans of an attempt, as `query_spans` returns them."""


class OtelTraceAdapter(Adapter[Sequence[Any], T_to], Generic[T_to]):
    """Converts OpenTelemetry's `ReadableSpan`s."""


def as_spans(source: Sequence[Any]) -> list[Span]:
    """Spans of the store, or OpenTelemetry's, in their order.

    The order is that of the sequence ids. OpenTelemetry's spans have none: they are numbered in the order of their
    ends, as the store does it; those of one process come from one clock.
    """
    if all(isinstance(item, Span) for item in source):
        return sorted(source, key=lambda span: span.sequence_id)
    spans = [item if isinstance(item, Span) else _from_foreign(item) for item in source]
    spans.sort(key=lambda span: (span.sequence_id, span.end_time or span.start_time or 0.0))
    return [span.model_copy(update={"sequence_id": number}) for number, span in enumerate(spans, start=1)]


def _from_foreign(item: Any) -> Span:
    return Span.from_emitted(as_emitted(item), "", "", 0)
