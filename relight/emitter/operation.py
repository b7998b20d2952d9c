"""`operation`: a span around a piece of work, as a decorator or in a `with` block.

    @operation                                  with operation(name="search") as op:
    async def search(query): ...                    op.set_input(query="x")
                                                    op.set_output(hits)

The span is sent when the operation ends. Inputs and outputs become attributes; an exception sets the status ERROR.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from relight.emitter.attributes import flatten
from relight.emitter.emit import exception_attributes
from relight.emitter.names import EXCEPTION, OPERATION, OPERATION_INPUT, OPERATION_NAME, OPERATION_OUTPUT
from relight.emitter.recorder import EmittedSpan, as_parent, make_span, send

P = ParamSpec("P")
R = TypeVar("R")


class Operation:
    """A context manager for one span; called with a function, it returns the function with a span for each call."""

    def __init__(self, attributes: Mapping[str, Any], propagate: bool = True) -> None:
        self._attributes = flatten(attributes)
        self._propagate = propagate
        self._span: EmittedSpan | None = None
        self._context: AbstractContextManager[None] | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._span = make_span(OPERATION, dict(self._attributes))
        self._context = as_parent(self._span["span_id"])
        self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        span = self.span()
        if self._context is not None:
            self._context.__exit__(None, None, None)
        span["end_time"] = span["start_time"] + time.monotonic() - self._began  # not wall time, which may be set
        if error is not None:
            self._note_error(span, error)
        send(span, self._propagate)

    @staticmethod
    def _note_error(span: EmittedSpan, error: BaseException) -> None:
        noted = exception_attributes(error)
        span["status"] = "ERROR"
        span["status_description"] = f"{type(error).__name__}: {error}"[:1000]
        span["events"].append({"name": EXCEPTION, "timestamp": span["end_time"], "attributes": noted})

    def span(self) -> EmittedSpan:
        """The span of this operation.

        Raises:
            RuntimeError: the operation was not entered.
        """
        if self._span is None:
            raise RuntimeError("the operation was not entered; use it in a with block")
        return self._span

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Set the inputs as attributes: positional ones as a list `args`, the others by name."""
        given: dict[str, Any] = {"args": list(args)} if args else {}
        self.span()["attributes"].update(flatten(given | kwargs, OPERATION_INPUT))

    def set_output(self, output: Any) -> None:
        """Set the output as an attribute."""
        self.span()["attributes"].update(flatten({OPERATION_OUTPUT: output}))

    def _note_call(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call itself is about to raise the same
            return
        bound.apply_defaults()
        self.span()["attributes"].update(flatten(bound.arguments, OPERATION_INPUT))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function, sync or async: each call is an operation with its arguments and result."""
        signature = inspect.signature(function)
        named = {OPERATION_NAME: function.__name__, **self._attributes}
        propagate = self._propagate
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Operation(named, propagate) as work:
                    work._note_call(signature, args, kwargs)
                    result = await function(*args, **kwargs)
                    work.set_output(result)
                    return result

            return cast("Callable[P, R]", asynchronous)

        @functools.wraps(function)
        def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
            with Operation(named, propagate) as work:
                work._note_call(signature, args, kwargs)
                result = function(*args, **kwargs)
                work.set_output(result)
                return result

        return synchronous


@overload
def operation(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def operation(*, name: str | None = None, propagate: bool = True, **attributes: Any) -> Operation: ...


def operation(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, propagate: bool = True, **attributes: Any
) -> Callable[P, R] | Operation:
    """Trace a function (as a decorator) or a block (as a context manager).

    Args:
        function: the decorated function, if the decorator has no arguments.
        name: of the operation; by default the function's name.
        propagate: False: make the span without sending it.
        attributes: of the span; nested values are flattened.
    """
    if name is not None:
        attributes[OPERATION_NAME] = name
    work = Operation(attributes, propagate)
    return work if function is None else work(function)
