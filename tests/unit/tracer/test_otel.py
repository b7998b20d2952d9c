"""The tracer on OpenTelemetry's SDK: which attempt gets a span, and what is kept of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, StatusCode

from relight.emitter import emit_message, emit_reward, operation
from relight.emitter.scope import EmittedSpan, Scope, close_scope, open_scope, set_context_scope, set_process_scope
from relight.store.memory.lightning import InMemoryLightningStore
from relight.tracer import AgentOpsTracer, OtelTracer, get_active_tracer
from relight.types.rollout import AttemptedRollout
from relight.types.tracer import Span, TraceStatus


@pytest.fixture(scope="module", autouse=True)
def tracer() -> Generator[OtelTracer]:
    tracer = OtelTracer()
    with tracer.lifespan():
        yield tracer


def named(tracer: OtelTracer) -> dict[str, Span]:
    return {span.name: span for span in tracer.get_last_trace()}


async def an_attempt(store: InMemoryLightningStore) -> AttemptedRollout:
    return await store.start_rollout(input={"question": 1})


def test_a_span_keeps_ids_parent_links_events_resource_and_nanoseconds(tracer: OtelTracer) -> None:
    with tracer._trace_context_sync():
        library = trace.get_tracer("library")
        with library.start_as_current_span("outer", start_time=1_700_000_000_123_456_789) as outer:
            link = Link(outer.get_span_context(), {"why": "cause"})
            inner = library.start_span("inner", links=[link], kind=trace.SpanKind.CLIENT, attributes={"k": (1, 2)})
            inner.add_event("happened", {"n": 1}, timestamp=1_700_000_000_500_000_001)
            inner.set_status(StatusCode.ERROR, "no luck")
            inner.end()
    spans = named(tracer)
    kept, context = spans["inner"], inner.get_span_context()
    assert (kept.trace_id, kept.span_id) == (format(context.trace_id, "032x"), format(context.span_id, "016x"))
    assert kept.parent_id == spans["outer"].span_id
    assert kept.attributes == {"k": [1, 2]}
    assert (kept.status.status_code, kept.status.description) == ("ERROR", "no luck")
    assert kept.links[0].context.span_id == spans["outer"].span_id
    assert kept.events[0].model_dump()["time_unix_nano"] == 1_700_000_000_500_000_001
    assert kept.resource.attributes["telemetry.sdk.language"] == "python"
    assert kept.model_dump()["kind"] == "CLIENT"
    assert spans["outer"].model_dump()["start_time_unix_nano"] == 1_700_000_000_123_456_789
    assert Span.model_validate(kept.model_dump()) == kept


async def test_spans_of_a_named_attempt_are_in_the_store_in_the_order_of_their_ends(tracer: OtelTracer) -> None:
    store = InMemoryLightningStore()
    rollout = await an_attempt(store)
    ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    async with tracer.trace_context(store=store, **ids) as library:
        with library.start_as_current_span("outer"):
            emit_reward(0.5)
            numbers = [span.sequence_id for span in await store.query_spans(**ids)]
            library.start_span("inner").end()
    assert numbers == [1], "emit_reward returned before its span had its number"
    stored = await store.query_spans(**ids)
    assert [(span.sequence_id, span.name) for span in stored] == [
        (1, "agentlightning.annotation"),
        (2, "inner"),
        (3, "outer"),
    ]
    assert stored[0].parent_id == stored[2].span_id
    assert [span.sequence_id for span in tracer.get_last_trace()] == [1, 2, 3]


async def test_concurrent_traces_of_one_process_have_their_own_spans(tracer: OtelTracer) -> None:
    store = InMemoryLightningStore()

    async def traced(text: str) -> list[str]:
        own, rollout = OtelTracer(), await an_attempt(store)
        own.init_worker(1, store)
        ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        async with own.trace_context(**ids):
            for number in range(3):
                await asyncio.sleep(0)
                trace.get_tracer("library").start_span(f"{text}{number}").end()
        return [span.name for span in await store.query_spans(**ids)]

    assert await asyncio.gather(*(traced(text) for text in "ab")) == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]


async def test_a_store_that_fails_costs_no_more_than_a_count(tracer: OtelTracer) -> None:
    store = InMemoryLightningStore()
    async with tracer.trace_context(store=store, rollout_id="ro-unknown", attempt_id="at-unknown"):
        emit_message("kept here")
    assert [span.name for span in tracer.get_last_trace()] == ["agentlightning.message"]
    assert tracer.dropped == 1


@contextmanager
def scopes(*names: str) -> Generator[tuple[dict[str, list[EmittedSpan]], dict[str, int], list[Scope]]]:
    """Scopes of attempts that share this process."""
    sent: dict[str, list[EmittedSpan]] = {name: [] for name in names}
    dropped = dict.fromkeys(names, 0)

    def scope(name: str) -> Scope:
        def drop() -> None:
            dropped[name] += 1

        return Scope(name, sent[name].append, dropped=drop)

    made = [scope(name) for name in names]
    for one in made:
        open_scope(one)
    try:
        yield sent, dropped, made
    finally:
        for one in made:
            close_scope(one)


def in_a_bare_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_span_is_of_its_contexts_attempt_else_of_its_parents_else_of_the_only_one() -> None:
    library = trace.get_tracer("library")
    with scopes("a", "b") as (sent, dropped, (a, _)):

        def in_context() -> None:
            set_context_scope(a)
            parent = library.start_span("parent")
            in_a_bare_thread(lambda: library.start_span("child", trace.set_span_in_context(parent)).end())
            set_context_scope(None)
            parent.end()

        in_a_bare_thread(in_context)
        assert [span["name"] for span in sent["a"]] == ["child", "parent"]
        in_a_bare_thread(lambda: library.start_span("whose").end())
        assert (sent["b"], dropped) == ([], {"a": 1, "b": 1})
    with scopes("only") as (sent, dropped, _):
        in_a_bare_thread(lambda: library.start_span("mine").end())
        assert ([span["name"] for span in sent["only"]], dropped) == (["mine"], {"only": 0})


def test_a_span_stays_with_the_attempt_in_which_it_began() -> None:
    library = trace.get_tracer("library")
    with scopes("a", "b") as (sent, _, (a, b)):

        def crossing() -> None:
            set_context_scope(a)
            span = library.start_span("begun in a")
            set_context_scope(b)
            span.end()

        in_a_bare_thread(crossing)
        assert (len(sent["a"]), sent["b"]) == (1, [])


def test_a_span_of_the_process_attempt_needs_no_context() -> None:
    sent: list[EmittedSpan] = []
    set_process_scope(Scope("0" * 32, sent.append))
    try:
        in_a_bare_thread(lambda: trace.get_tracer("library").start_span("anywhere").end())
    finally:
        set_process_scope(None)
    assert [span["name"] for span in sent] == ["anywhere"]


def test_operations_are_parents_of_what_libraries_record_in_them(tracer: OtelTracer) -> None:
    outer = operation(name="outer")

    def fail() -> None:
        with outer:
            trace.get_tracer("library").start_span("inside").end()
            raise ValueError("no")

    with tracer._trace_context_sync():
        assert get_active_tracer() is tracer
        with pytest.raises(ValueError, match="no"):
            fail()
    spans = named(tracer)
    assert spans["inside"].parent_id == spans["agentlightning.operation"].span_id
    assert (outer.span().status.status_code, outer.span().status.description) == ("ERROR", "no")
    assert spans["agentlightning.operation"].events[0].attributes["exception.type"] == "ValueError"
    assert get_active_tracer() is None


def test_a_created_span_has_the_given_time_and_status(tracer: OtelTracer) -> None:
    status = TraceStatus(status_code="ERROR", description="boom")
    span = tracer.create_span("made", attributes={"a": 1}, timestamp=2000.125, status=status)
    assert (span.name, span.attributes, span.status.model_dump()) == ("made", {"a": 1}, status.model_dump())
    assert (span.start_time, span.end_time) == (2000.125, 2000.125)


def test_one_id_of_an_attempt_is_not_enough_and_needs_a_store(tracer: OtelTracer) -> None:
    with pytest.raises(ValueError, match="both, or none"), tracer._trace_context_sync(rollout_id="ro-1"):
        pass
    with pytest.raises(ValueError, match="needs a store"), tracer._trace_context_sync(rollout_id="r", attempt_id="a"):
        pass


def test_traces_are_not_nested(tracer: OtelTracer) -> None:
    with tracer._trace_context_sync(), pytest.raises(ValueError, match="active already"), tracer._trace_context_sync():
        pass


def test_a_tracer_that_was_not_initialised_says_so() -> None:
    with pytest.raises(RuntimeError, match="init_worker"):
        OtelTracer().create_span("early")


PROVIDERS = """
from opentelemetry import trace
from opentelemetry.trace import set_tracer_provider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from relight.tracer import OtelTracer
own = TracerProvider()
users = InMemorySpanExporter()
own.add_span_processor(SimpleSpanProcessor(users))
tracer = OtelTracer()
if {first}:
    set_tracer_provider(own)
with tracer.lifespan():
    early = trace.get_tracer("early")
    if not {first}:
        set_tracer_provider(own)
    assert trace.get_tracer_provider() is own
    with tracer._trace_context_sync():
        early.start_span("early").end()
        trace.get_tracer("late").start_span("late").end()
    print(sorted(s.name for s in tracer.get_last_trace()), [s.name for s in users.get_finished_spans()][-1])
"""


@pytest.mark.parametrize("first", [True, False])
def test_a_provider_of_the_agent_is_followed_whether_it_is_set_before_or_after(first: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROVIDERS.format(first=first)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("['early', 'late'] late", "")


def test_importing_the_tracer_loads_no_sdk() -> None:
    code = "import sys, relight, relight.tracer; print([n for n in sys.modules if n.startswith('opentelemetry.sdk')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_agent_ops_tracer_is_an_alias_that_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        aliases = [AgentOpsTracer(), AgentOpsTracer()]
    assert [(type(each.message), "OtelTracer" in str(each.message)) for each in caught] == [(DeprecationWarning, True)]
    assert {alias.instrument for alias in aliases} == {"all"}


def test_what_other_processors_get_is_not_changed() -> None:
    exporter, provider = InMemorySpanExporter(), trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    emit_message("no tracer is active, so it is no span of OpenTelemetry's")
    trace.get_tracer("library").start_span("seen").end()
    assert [span.name for span in exporter.get_finished_spans()] == ["seen"]
