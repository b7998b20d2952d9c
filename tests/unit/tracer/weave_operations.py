"""Operations of Weave's."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import weave
from opentelemetry import trace

from relight.emitter import emit_message


@weave.op
def inner(number: int) -> int:
    emit_message("inside")
    trace.get_tracer("library").start_span("library").end()
    return 2 * number


@weave.op
def outer(number: int) -> dict[str, int]:
    return {"double": inner(number)}


@weave.op
def fails() -> None:
    raise KeyError("lost")


@weave.op
async def counts(upto: int) -> AsyncGenerator[int]:
    for number in range(upto):
        yield number
