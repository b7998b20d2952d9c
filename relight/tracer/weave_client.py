"""Weave's client without a server: its calls become spans of OpenTelemetry."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextvars import Token
from datetime import UTC, datetime
from typing import Any, Literal

from opentelemetry import context, trace
from weave.integrations import patch as integrations
from weave.trace.call import Call
from weave.trace.context import call_context
from weave.trace.context.weave_client_context import get_weave_client, set_weave_client_global
from weave.trace.weave_client import WeaveClient

from relight.emitter.attributes import flatten
from relight.semconv import LightningSpanAttributes as Attribute

PROJECT = "relight"
UnderWay = tuple[trace.Span, "Token[Any] | None"]


class WeaveSpanClient(WeaveClient):
    """What Weave's operations use of their client; the rest of it needs a server, and raises."""

    def __init__(self, tracer: Callable[[], trace.Tracer]) -> None:
        self.entity = self.project = PROJECT
        self.attributes: dict[str, Any] = {}
        self._tracer = tracer
        self._under_way: dict[str, UnderWay] = {}

    def enter(self) -> None:
        """Get the calls of Weave's operations from now on.

        Raises:
            RuntimeError: another client gets them.
        """
        if get_weave_client() is not None:
            raise RuntimeError("weave has a client already: leave weave.init() out, or call weave.finish() before")
        set_weave_client_global(self)

    def leave(self) -> None:
        """Get no more calls."""
        set_weave_client_global(None)

    def create_call(
        self,
        op: Any,
        inputs: dict[str, Any],
        parent: Call | None = None,
        attributes: dict[str, Any] | None = None,
        display_name: Any = None,
        *,
        use_stack: bool = True,
        **options: Any,
    ) -> Call:
        """Begin the span of a call, under the parent's, or OpenTelemetry's current one."""
        parent = parent or (call_context.get_current_call() if use_stack else None)
        above = self._under_way.get(str(parent.id)) if parent else None
        name = op if isinstance(op, str) else op.name
        noted = flatten({**(attributes or {}), Attribute.OPERATION_NAME.value: name})
        noted |= flatten(inputs, Attribute.OPERATION_INPUT)
        span = self._tracer().start_span(name, trace.set_span_in_context(above[0]) if above else None, attributes=noted)
        call = Call(
            _op_name=name,
            project_id=f"{PROJECT}/{PROJECT}",
            trace_id=parent.trace_id if parent else uuid.uuid4().hex,
            parent_id=parent.id if parent else None,
            id=uuid.uuid4().hex,
            inputs=inputs,
            attributes=attributes,
            started_at=datetime.now(UTC),
        )
        token = context.attach(trace.set_span_in_context(span)) if use_stack else None
        self._under_way[str(call.id)] = span, token
        if use_stack:
            call_context.push_call(call)
        return call

    def finish_call(
        self, call: Call, output: Any = None, exception: BaseException | None = None, **options: Any
    ) -> None:
        """End the span of a call."""
        call_context.pop_call(call.id)
        span, token = self._under_way.pop(str(call.id), (None, None))
        if span is None:
            return
        if token is not None and trace.get_current_span() is span:  # a generator may end in another context
            context.detach(token)
        call.output, call.ended_at = output, datetime.now(UTC)
        span.set_attributes(flatten({**(call.summary or {}), Attribute.OPERATION_OUTPUT.value: _plain(output)}))
        if exception is not None:
            call.exception = str(exception)
            span.record_exception(exception)
            span.set_status(trace.StatusCode.ERROR, str(exception)[:1000])
        span.end()

    def fail_call(self, call: Call, exception: BaseException) -> None:
        """End the span of a call that raised."""
        self.finish_call(call, exception=exception)


def _plain(output: Any) -> Any:
    """An answer of a library as JSON values."""
    dump = getattr(output, "model_dump", None)
    return dump(mode="json") if callable(dump) else output


def patch(names: Sequence[str] | Literal["all"]) -> None:
    """Have Weave patch libraries.

    Raises:
        ValueError: it has no integration of a name.
    """
    if names == "all":
        integrations.implicit_patch()
        integrations.register_import_hook()
        return
    for name in names:
        patch_it = getattr(integrations, f"patch_{name}", None)
        if patch_it is None:
            known = sorted(each[6:] for each in dir(integrations) if each.startswith("patch_"))
            raise ValueError(f"patch: {name!r} is no integration of weave; there are {', '.join(known)}")
        patch_it()
