"""Where emitted spans are sent, and the tracer that makes them.

A scope holds the attempt's trace and a sink. An attempt with a process of its own sets the scope of the whole process,
so that threads which the agent starts use it too; attempts that share a process set it for their own context, and a
thread without a context belongs to the only one that is open. Without a scope a span is returned and not sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol, TypedDict

if TYPE_CHECKING:
    from relight.types.tracer import SpanCoreFields, SpanRecordingContext, TraceStatus

Status = Literal["UNSET", "OK", "ERROR"]
NUMBER_SECONDS = 2.0
"""How long `emit_reward` waits for its number."""


class EmittedSpan(TypedDict):
    """A span as it leaves the agent; the store gives it its sequence number."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status: str
    status_description: str | None
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    links: list[dict[str, Any]]
    start_time: float
    end_time: float | None
    resource: NotRequired[dict[str, Any]]
    extra: NotRequired[dict[str, Any]]
    """What the store keeps beside its columns: context, parent, kind, times in nanoseconds."""


Sink = Callable[[EmittedSpan], None]


@dataclass(frozen=True, slots=True)
class Scope:
    """One attempt's trace."""

    trace_id: str
    sink: Sink
    numbered: Callable[[], None] | None = None
    """Waits until what this thread has sent has its place in the order of the attempt; None: nothing gives places."""
    dropped: Callable[[], None] | None = None
    """Counts a span that was not sent."""


class SpanMaker(Protocol):
    """What emitters need of a tracer."""

    def create_span(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields: ...

    def operation_context(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]: ...


class AgentTracer(SpanMaker, Protocol):
    """What runners need of an agent's tracer."""

    def init(self) -> None: ...

    def init_worker(self, worker_id: int) -> None: ...


_scope: ContextVar[Scope | None] = ContextVar("relight_scope", default=None)
_parent: ContextVar[str | None] = ContextVar("relight_parent_span", default=None)
_process_scope: Scope | None = None
_open: list[Scope] = []
"""The scopes of contexts."""
_context_tracer: ContextVar[SpanMaker | None] = ContextVar("relight_tracer", default=None)
_process_tracer: SpanMaker | None = None


def set_process_scope(scope: Scope | None) -> None:
    """All spans of this process belong to `scope`."""
    global _process_scope
    _process_scope = scope


def set_context_scope(scope: Scope | None) -> None:
    """Spans of the current context, and of tasks and threads that copy it, belong to `scope`."""
    _scope.set(scope)


def open_scope(scope: Scope) -> None:
    """Count a context's scope among those that a thread without a context may belong to."""
    _open.append(scope)


def close_scope(scope: Scope) -> None:
    """Its attempt has ended."""
    _open.remove(scope)


def context_scope() -> Scope | None:
    """The scope of this context."""
    return _scope.get()


def only_scope() -> Scope | None:
    """The scope of the process, else the only one of its contexts; None: there is none, or there are several."""
    scopes = _open[:]  # other threads open and close some
    return _process_scope or (scopes[0] if len(scopes) == 1 else None)


def current_scope() -> Scope | None:
    """The scope of this context, else the only one of the process."""
    return context_scope() or only_scope()


def count_dropped() -> bool:
    """Count a span whose attempt can't be known: on each attempt that it may be of. False: there is none."""
    scopes = _open[:]
    for scope in scopes:
        if scope.dropped is not None:
            scope.dropped()
    return bool(scopes)


@contextmanager
def within(scope: Scope, tracer: SpanMaker) -> Generator[None]:
    """Spans of the block belong to `scope`, and `tracer` makes those of emitters.

    Raises:
        ValueError: a tracer is active already.
    """
    _refuse_second_tracer()
    scope_token, tracer_token = _scope.set(scope), _context_tracer.set(tracer)
    open_scope(scope)
    try:
        yield
    finally:
        close_scope(scope)
        _context_tracer.reset(tracer_token)
        _scope.reset(scope_token)


def set_active_tracer(tracer: SpanMaker) -> None:
    """Make the spans of emitters by this tracer, in the whole process.

    Raises:
        ValueError: a tracer is active already.
    """
    global _process_tracer
    _refuse_second_tracer()
    _process_tracer = tracer


def _refuse_second_tracer() -> None:
    if (active := get_active_tracer()) is not None:
        raise ValueError(f"{type(active).__name__} is active already: end its trace_context, or clear_active_tracer()")


def set_context_tracer(tracer: SpanMaker | None) -> None:
    """Make the spans of emitters by this tracer in the current context, and in tasks and threads that copy it."""
    _context_tracer.set(tracer)


def clear_active_tracer() -> None:
    """Make the spans of emitters without a tracer again."""
    global _process_tracer
    _process_tracer = None
    _context_tracer.set(None)


def get_active_tracer() -> Any:
    """The tracer that makes the spans of emitters: the context's, else the process'; None: there is none."""
    return _context_tracer.get() or _process_tracer


@contextmanager
def as_parent(span_id: str) -> Generator[None]:
    """Spans emitted inside are children of `span_id`."""
    token = _parent.set(span_id)
    try:
        yield
    finally:
        _parent.reset(token)


def new_span_id() -> str:
    """8 random bytes in hexadecimal, as OpenTelemetry has them."""
    return os.urandom(8).hex()


def new_trace_id() -> str:
    """16 random bytes in hexadecimal."""
    return os.urandom(16).hex()


def make_span(name: str, attributes: dict[str, Any], *, status: Status = "OK", at: float | None = None) -> EmittedSpan:
    """A span that starts and ends at this time (Unix seconds), or now. `attributes` are flat."""
    scope = current_scope()
    now = time.time() if at is None else at
    return EmittedSpan(
        trace_id=scope.trace_id if scope else new_trace_id(),
        span_id=new_span_id(),
        parent_id=_parent.get(),
        name=name,
        status=status,
        status_description=None,
        attributes=attributes,
        events=[],
        links=[],
        start_time=now,
        end_time=now,
    )


def send(span: EmittedSpan, propagate: bool = True) -> EmittedSpan:
    """Send a finished span to the attempt's sink, if there is one."""
    scope = current_scope() if propagate else None
    if scope is not None:
        scope.sink(span)
    elif propagate:
        count_dropped()
    return span


def await_number() -> None:
    """Wait until what this thread has sent has its place in the order of the attempt."""
    scope = current_scope()
    if scope is not None and scope.numbered is not None:
        scope.numbered()
