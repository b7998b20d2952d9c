"""Rows of spans, as OTLP brings them, into a store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from relight.errors import NotFoundError
from relight.observability.redaction import Redactor
from relight.store.base import LightningStore
from relight.store.spans.ingest import DUPLICATE, SpanOutcome, SpanSink
from relight.store.spans.rows import SpanRow, span_of_row


class MemorySpans(SpanSink):
    """Keeps spans in a store."""

    def __init__(self, store: LightningStore, redactor: Redactor | None = None) -> None:
        super().__init__(redactor)
        self._store = store

    async def submit(self, rows: Sequence[SpanRow]) -> list[SpanOutcome]:
        """Keep rows, one after the other."""
        outcomes = [await self._keep(row) for row in rows]
        self.count(Counter(outcome.state for outcome in outcomes))
        return outcomes

    async def _keep(self, row: SpanRow) -> SpanOutcome:
        try:
            kept = await self._store.add_span(span_of_row(row))
        except NotFoundError:
            return SpanOutcome("unknown")
        return SpanOutcome("new", kept.sequence_id) if kept else DUPLICATE

    async def aclose(self) -> None:
        """Nothing is under way."""
