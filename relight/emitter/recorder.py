"""Where emitted spans are sent.

A scope holds the attempt's trace and a sink. An attempt with a process of its own sets the scope of the whole process,
so that threads which the agent starts use it too; attempts that share a process set it for their own context. Without a
scope a span is returned and not sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Status = Literal["UNSET", "OK", "ERROR"]


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


Sink = Callable[[EmittedSpan], None]


@dataclass(frozen=True, slots=True)
class Scope:
    """One attempt's trace."""

    trace_id: str
    sink: Sink


_scope: ContextVar[Scope | None] = ContextVar("relight_scope", default=None)
_parent: ContextVar[str | None] = ContextVar("relight_parent_span", default=None)
_process_scope: Scope | None = None


def set_process_scope(scope: Scope | None) -> None:
    """All spans of this process belong to `scope`."""
    global _process_scope
    _process_scope = scope


def set_context_scope(scope: Scope | None) -> None:
    """Spans of the current context, and of tasks and threads that copy it, belong to `scope`."""
    _scope.set(scope)


def current_scope() -> Scope | None:
    """The current scope, if there is one."""
    return _scope.get() or _process_scope


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


def make_span(name: str, attributes: dict[str, Any], *, status: Status = "OK") -> EmittedSpan:
    """A span that starts and ends now. `attributes` are flat."""
    scope = current_scope()
    now = time.time()
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
    scope = current_scope()
    if propagate and scope is not None:
        scope.sink(span)
    return span
