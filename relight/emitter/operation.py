"""`operation`: a span around a piece of work, as a decorator or in a `with` block.

    @operation                                  with operation(name="search") as op:
    async def search(query): ...                    op.set_input(query="x")
                                                    op.set_output(hits)

The span is sent when the operation ends. Inputs and outputs become attributes; an exception sets the status ERROR. The
span of a generator lasts until it ends or is closed, and its output is what it yielded.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast, overload

from relight.emitter.attributes import flatten
from relight.emitter.plain_spans import plain_operation
from relight.emitter.scope import get_active_tracer
from relight.semconv import AGL_OPERATION
from relight.semconv import LightningSpanAttributes as Attribute
from relight.types.tracer import SpanCoreFields, SpanRecordingContext

P = ParamSpec("P")
R = TypeVar("R")
MAX_YIELDED: Final = 1000
"""Items of a generator that its span holds; of further ones it holds none."""


class Operation:
    """A context manager for one span; called with a function, it returns the function with a span for each call."""

    def __init__(self, attributes: Mapping[str, Any], propagate: bool = True) -> None:
        self._attributes = flatten(attributes)
        self._propagate = propagate
        self._recorded: SpanRecordingContext | None = None
        self._context: AbstractContextManager[SpanRecordingContext] | None = None
        self._items: list[Any] = []

    def __enter__(self) -> Self:
        tracer = get_active_tracer() if self._propagate else None
        if tracer is not None:
            context = tracer.operation_context(AGL_OPERATION, attributes=dict(self._attributes))
        else:
            context = plain_operation(AGL_OPERATION, self._attributes, propagate=self._propagate)
        self._context, self._recorded = context, context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, error, stack)

    def span(self) -> SpanCoreFields:
        """The span of this operation.

        Raises:
            RuntimeError: the operation was not entered.
        """
        return self._entered().get_recorded_span()

    def _entered(self) -> SpanRecordingContext:
        if self._recorded is None:
            raise RuntimeError("the operation was not entered; use it in a with block")
        return self._recorded

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Set the inputs as attributes: positional ones as a list `args`, the others by name."""
        given: dict[str, Any] = {"args": list(args)} if args else {}
        self._entered().record_attributes(flatten(given | kwargs, Attribute.OPERATION_INPUT))

    def set_output(self, output: Any) -> None:
        """Set the output as an attribute."""
        self._entered().record_attributes(flatten({Attribute.OPERATION_OUTPUT: output}))

    def note_call(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Set the arguments of a call as inputs, by the names of the function's parameters."""
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call itself is about to raise the same
            return
        bound.apply_defaults()
        self._entered().record_attributes(flatten(bound.arguments, Attribute.OPERATION_INPUT))

    def begin_generator(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Enter the span of a generator."""
        self.__enter__()
        self.note_call(signature, args, kwargs)

    def yielded(self, item: R) -> R:
        """Keep an item of a generator, one of the first."""
        if len(self._items) < MAX_YIELDED:
            self._items.append(item)
        return item

    def end_generator(self, failure: BaseException | None) -> None:
        """End the span of a generator, which was exhausted, closed or raised."""
        self.set_output(self._items)
        failed = None if isinstance(failure, GeneratorExit) else failure
        self.__exit__(failed and type(failed), failed, failed and failed.__traceback__)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function, a coroutine function or a generator of either kind: each call is an operation."""
        named = {Attribute.OPERATION_NAME.value: function.__name__, **self._attributes}
        if inspect.isasyncgenfunction(function):
            wrapper: Any = _around_async_generator
        elif inspect.isgeneratorfunction(function):
            wrapper = _around_generator
        elif inspect.iscoroutinefunction(function):
            wrapper = _around_coroutine
        else:
            wrapper = _around_function
        wrapped = wrapper(function, inspect.signature(function), functools.partial(Operation, named, self._propagate))
        return cast("Callable[P, R]", functools.wraps(function)(wrapped))


Begin = Callable[[], Operation]


def _around_function(function: Callable[..., Any], signature: inspect.Signature, begin: Begin) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with begin() as work:
            work.note_call(signature, args, kwargs)
            result = function(*args, **kwargs)
            work.set_output(result)
            return result

    return call


def _around_coroutine(function: Callable[..., Any], signature: inspect.Signature, begin: Begin) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with begin() as work:
            work.note_call(signature, args, kwargs)
            result = await function(*args, **kwargs)
            work.set_output(result)
            return result

    return call


def _around_generator(function: Callable[..., Any], signature: inspect.Signature, begin: Begin) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        context, work = copy_context(), begin()  # a body of its own context: between its steps others run
        context.run(work.begin_generator, signature, args, kwargs)
        items, failure = function(*args, **kwargs), None
        step, value = items.send, None
        try:
            while True:
                item = work.yielded(context.run(step, value))
                try:
                    step, value = items.send, (yield item)
                except GeneratorExit:
                    context.run(items.close)
                    raise
                except BaseException as error:
                    step, value = items.throw, error
        except StopIteration as end:
            return end.value
        except BaseException as error:
            failure = error
            raise
        finally:
            context.run(work.end_generator, failure)

    return call


def _around_async_generator(
    function: Callable[..., Any], signature: inspect.Signature, begin: Begin
) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        context, work = copy_context(), begin()  # as above
        context.run(work.begin_generator, signature, args, kwargs)
        items, failure = function(*args, **kwargs), None
        step, value = items.asend, None
        try:
            while True:
                item = work.yielded(await _run_in(context, step(value)))
                try:
                    step, value = items.asend, (yield item)
                except GeneratorExit:
                    await _run_in(context, items.aclose())
                    raise
                except BaseException as error:
                    step, value = items.athrow, error
        except StopAsyncIteration:
            return
        except BaseException as error:
            failure = error
            raise
        finally:
            context.run(work.end_generator, failure)

    return call


@types.coroutine
def _run_in(context: Context, awaitable: Awaitable[R]) -> Generator[Any, Any, R]:
    """Await something whose every step runs in this context."""
    steps: Any = awaitable.__await__()
    step, value = steps.send, None
    while True:
        try:
            waited = context.run(step, value)
        except StopIteration as end:
            return end.value
        try:
            step, value = steps.send, (yield waited)
        except BaseException as error:
            step, value = steps.throw, error


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
        attributes[Attribute.OPERATION_NAME.value] = name
    work = Operation(attributes, propagate)
    return work if function is None else work(function)
