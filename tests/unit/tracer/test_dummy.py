"""The tracer of emitters alone, and which tracer is active."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from relight.emitter import emit_message, emit_reward, operation
from relight.emitter.plain_spans import PlainSpan
from relight.store.memory.lightning import InMemoryLightningStore
from relight.tracer import DummyTracer, Tracer, clear_active_tracer, get_active_tracer, set_active_tracer
from relight.types.tracer import SpanCoreFields, TraceStatus


@pytest.fixture(autouse=True)
def _no_active_tracer() -> Generator[None]:
    clear_active_tracer()
    yield
    clear_active_tracer()


def test_a_second_tracer_is_refused_until_the_first_is_cleared() -> None:
    tracer = DummyTracer()
    set_active_tracer(tracer)
    with pytest.raises(ValueError, match="DummyTracer is active already"):
        set_active_tracer(DummyTracer())
    assert get_active_tracer() is tracer
    clear_active_tracer()
    assert get_active_tracer() is None


def test_a_created_span_has_its_time_and_status() -> None:
    tracer = DummyTracer()
    status = TraceStatus(status_code="ERROR", description="boom")
    span = tracer.create_span("made", {"a": 1}, timestamp=2000.5, status=status)
    assert (span.name, span.attributes, span.status) == ("made", {"a": 1}, status)
    assert (span.start_time, span.end_time) == (2000.5, 2000.5)
    assert tracer.create_span("plain").status.status_code == "OK"


def test_an_operation_notes_attributes_and_what_it_raised() -> None:
    found: list[PlainSpan] = []

    def fail() -> None:
        with DummyTracer().operation_context("work", {"a": 1}, start_time=1.0) as recorded:
            found.append(recorded)
            recorded.record_attributes({"b": 2})
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        fail()
    span = found[0].get_recorded_span()
    assert (span.attributes, span.start_time) == ({"a": 1, "b": 2}, 1.0)
    assert (span.status.status_code, span.status.description) == ("ERROR", "boom")
    assert span.end_time is not None
    assert span.end_time > 1.0


async def test_what_emitters_make_is_recorded_and_stored() -> None:
    store, tracer = InMemoryLightningStore(), DummyTracer()
    rollout = await store.start_rollout(input={})
    ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context("run", **ids):
            with operation(name="search"):
                emit_message("inside", name="note")
            emit_reward(1.0)
    names = ["note", "agentlightning.operation", "agentlightning.annotation"]
    assert [(span.sequence_id, span.name) for span in await store.query_spans(**ids)] == list(enumerate(names, 1))
    assert [span.name for span in tracer.get_last_trace()] == names


async def test_functions_are_called_in_traces() -> None:
    tracer = DummyTracer()

    def work(text: str) -> str:
        emit_message(text)
        return text

    async def work_async(text: str) -> str:
        return work(text)

    assert tracer.trace_run(work, "one") == "one"
    assert [span.attributes for span in tracer.get_last_trace()] == [{"agentlightning.message.body": "one"}]
    assert await tracer.trace_run_async(work_async, "two") == "two"
    assert [span.attributes for span in tracer.get_last_trace()] == [{"agentlightning.message.body": "two"}]


def test_a_tracer_of_ones_own_makes_the_spans_of_emitters() -> None:
    made: list[str] = []

    class Own(Tracer):
        def create_span(self, name: str, *args: Any, **kwargs: Any) -> SpanCoreFields:
            made.append(name)
            return DummyTracer().create_span(name)

    set_active_tracer(Own())
    emit_message("hello")
    emit_message("unseen", propagate=False)
    assert made == ["agentlightning.message"]
