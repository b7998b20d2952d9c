"""What one `trace_context` records, and how it reaches the store.

Tracing is synchronous and stores are not: one daemon thread of the process runs an event loop that sends the spans of
each recording in their order, in batches.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Final, Self

from relight.emitter.scope import NUMBER_SECONDS, EmittedSpan, Scope, SpanMaker, current_scope, new_trace_id, within
from relight.store.base import LightningStore
from relight.types.tracer import NEXT_NUMBER, Span

log = logging.getLogger(__name__)
STORE_SECONDS: Final = 30.0
"""How long the end of a recording waits for the store."""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="relight-spans", daemon=True).start()
    return loop


class Recording:
    """The spans of one `trace_context`, in the order of their ends."""

    def __init__(self, store: LightningStore | None, rollout_id: str, attempt_id: str, outer: Scope | None) -> None:
        self._store = store
        self._rollout_id, self._attempt_id = rollout_id, attempt_id
        self._outer = outer
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._sent = 0
        """So many of the spans were sent, or given up."""
        self._sending: concurrent.futures.Future[None] | None = None
        self.dropped = 0
        """Spans that the store refused, or that may have been of this recording."""

    @classmethod
    def of(cls, store: LightningStore | None, rollout_id: str | None, attempt_id: str | None) -> Self:
        """A recording for an attempt in the store, or, without ids, one that hands on to the attempt around it.

        Raises:
            ValueError: only one of the ids is given, or there is no store for them.
        """
        if (rollout_id is None) != (attempt_id is None):
            raise ValueError(f"give rollout_id and attempt_id both, or none: {rollout_id=}, {attempt_id=}")
        if rollout_id is None or attempt_id is None:
            return cls(None, "", "", current_scope())
        if store is None:
            raise ValueError(f"attempt {attempt_id} needs a store: give one to init_worker() or lifespan()")
        return cls(store, rollout_id, attempt_id, None)

    @contextmanager
    def entered(self, tracer: SpanMaker) -> Generator[None]:
        """Record what happens in the block."""
        trace_id = self._outer.trace_id if self._outer else new_trace_id()
        scope = Scope(trace_id, self.take, numbered=self.await_numbers, dropped=self.count_dropped)
        with within(scope, tracer):
            yield

    def take(self, span: EmittedSpan) -> None:
        """Record a span that has ended."""
        if self._outer is not None:
            self._outer.sink(span)
        with self._lock:
            self._spans.append(self._as_span(span, len(self._spans)))
            if self._store is not None and self._sending is None:
                self._sending = asyncio.run_coroutine_threadsafe(self._send_all(), _loop())

    def _as_span(self, span: EmittedSpan, position: int) -> Span:
        number = NEXT_NUMBER if self._store is not None else position
        return Span.from_emitted(span, self._rollout_id, self._attempt_id, number)

    def count_dropped(self) -> None:
        """Count a span that may have been of this recording."""
        with self._lock:
            self.dropped += 1

    def spans(self) -> list[Span]:
        """What was recorded so far; sequence ids are below 0 until the store has issued them."""
        with self._lock:
            return list(self._spans)

    def await_numbers(self) -> None:
        """Wait until the store has what was recorded so far, 2 seconds at most."""
        if self._outer is not None and self._outer.numbered is not None:
            self._outer.numbered()
        self.wait_until_stored(NUMBER_SECONDS)

    def wait_until_stored(self, seconds: float = STORE_SECONDS) -> None:
        """Wait until the store has it all, so many seconds at most."""
        with self._lock:
            sending = self._sending
        if sending is not None:
            concurrent.futures.wait([sending], timeout=seconds)

    async def stored(self) -> None:
        """Wait until the store has it all, 30 seconds at most."""
        with self._lock:
            sending = self._sending
        if sending is not None:
            await asyncio.wait([asyncio.wrap_future(sending)], timeout=STORE_SECONDS)

    async def _send_all(self) -> None:
        while batch := self._next_batch():
            try:
                await self._send(batch, self._sent - len(batch))
            except Exception as error:  # a store of any kind; its spans are kept for `get_last_trace`
                log.warning("%d spans of attempt %s were not stored: %s", len(batch), self._attempt_id, error)
                with self._lock:
                    self.dropped += len(batch)

    def _next_batch(self) -> list[Span]:
        with self._lock:
            batch = self._spans[self._sent :]
            self._sent = len(self._spans)
            if not batch:
                self._sending = None
            return batch

    async def _send(self, batch: list[Span], start: int) -> None:
        assert self._store is not None
        stored = {span.span_id: span for span in await self._store.add_many_spans(batch)}
        with self._lock:
            for place, span in enumerate(batch, start):
                self._spans[place] = stored.get(span.span_id, span)
