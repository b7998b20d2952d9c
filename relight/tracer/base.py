"""The base of tracers, and the tracer that is active.

A tracer records what happens inside `trace_context`: the spans that emitters and instrumented libraries make. They are
sent to the store where an attempt is named, and kept for `get_last_trace`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

from relight.emitter.scope import clear_active_tracer, get_active_tracer, set_active_tracer
from relight.store.base import LightningStore
from relight.tracer.recording import Recording
from relight.types.tracer import Attributes, Span, SpanCoreFields, SpanRecordingContext, TraceStatus

__all__ = ["Tracer", "clear_active_tracer", "get_active_tracer", "set_active_tracer"]

log = logging.getLogger(__name__)
R = TypeVar("R")


class Tracer:
    """Base of tracers. Source: Agent Lightning 0.3's `Tracer`.

    `init` and `init_worker` come before `trace_context`, `teardown_worker` and `teardown` after it; `lifespan` does all
    four. One that records in another way defines `create_span` and `operation_context`.
    """

    worker_id: int | None = None
    _store: LightningStore | None = None
    _recording: Recording | None = None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Prepare it, before the workers are started."""

    def init_worker(self, worker_id: int, store: LightningStore | None = None, *args: Any, **kwargs: Any) -> None:
        """Prepare it in a worker. Spans of named attempts go to `store`."""
        self.worker_id = worker_id
        self._store = store

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """End what `init_worker` began."""
        self.worker_id = None

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """End what `init` began."""

    def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Record what happens in the block; at its end all spans are in the store, or were counted as dropped.

        Args:
            name: of the trace; recorded nowhere so far, as in 0.3.
            store: in place of that of `init_worker`.
            rollout_id, attempt_id: the attempt that the spans belong to; both or none.

        Raises:
            ValueError: only one of the two ids is given, or there is no store for them, or the block is within another
                one of the same context.
        """
        return self._traced(store or self._store, rollout_id, attempt_id)

    @asynccontextmanager
    async def _traced(
        self, store: LightningStore | None, rollout_id: str | None, attempt_id: str | None
    ) -> AsyncGenerator[Any]:
        with self._recorded(store, rollout_id, attempt_id) as recording:
            try:
                yield self._handle()
            finally:
                await recording.stored()

    @contextmanager
    def _trace_context_sync(
        self, name: str | None = None, *, rollout_id: str | None = None, attempt_id: str | None = None
    ) -> Generator[Any]:
        with self._recorded(self._store, rollout_id, attempt_id) as recording:
            try:
                yield self._handle()
            finally:
                recording.wait_until_stored()

    @contextmanager
    def _recorded(
        self, store: LightningStore | None, rollout_id: str | None, attempt_id: str | None
    ) -> Generator[Recording]:
        recording = Recording.of(store, rollout_id, attempt_id)
        with recording.entered(self):
            self._recording = recording
            yield recording

    def _handle(self) -> Any:
        """What `trace_context` gives to its block."""
        return self

    def get_last_trace(self) -> list[Span]:
        """The spans of the newest `trace_context`, in the order of their ends; empty before the first."""
        return self._recording.spans() if self._recording else []

    @property
    def dropped(self) -> int:
        """Spans of the newest `trace_context` that the store refused, or whose attempt could not be known."""
        return self._recording.dropped if self._recording else 0

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Make a span that starts and ends at `timestamp` (Unix seconds), or now."""
        raise NotImplementedError(f"{type(self).__name__} has to define create_span(name, ...)")

    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]:
        """A span around a block. Times are Unix seconds."""
        raise NotImplementedError(f"{type(self).__name__} has to define operation_context(name, ...)")

    def trace_run(self, func: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Call a function in a trace."""
        with self._trace_context_sync(name=_name_of(func)):
            return func(*args, **kwargs)

    async def trace_run_async(self, func: Callable[..., Awaitable[R]], *args: Any, **kwargs: Any) -> R:
        """Call an asynchronous function in a trace."""
        async with self.trace_context(name=_name_of(func)):
            return await func(*args, **kwargs)

    def get_langchain_handler(self) -> Any:
        """A callback handler for LangChain, where the tracer needs one; None: it does not."""
        log.warning("%s has no callback handler for LangChain", type(self).__name__)

    @contextmanager
    def lifespan(self, store: LightningStore | None = None) -> Generator[None]:
        """Prepare it for the block, as worker 0, and end it afterwards."""
        self.init()
        try:
            self.init_worker(0, store)
            try:
                yield
            finally:
                self.teardown_worker(0)
        finally:
            self.teardown()


def _name_of(function: Callable[..., Any]) -> str:
    return cast("str", getattr(function, "__name__", type(function).__name__))
