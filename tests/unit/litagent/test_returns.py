"""What an agent's return value means."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, Status, StatusCode

from relight.emitter.reading import find_final_reward
from relight.emitter.scope import make_span
from relight.litagent.returns import parse_return
from relight.types.tracer import Event, Span, TraceStatus
from relight.types.wire import SpanRecord
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        (None, {}),
        ([], {}),
        (True, {"primary": 1.0}),
        (0, {"primary": 0.0}),
        (0.5, {"primary": 0.5}),
        ({"only": 1}, {"only": 1.0}),
        ({"b": 2, "primary": 1}, {"primary": 1.0, "b": 2.0}),
        (({"a": 1, "b": 2}, "b"), {"b": 2.0, "a": 1.0}),
    ],
)
def test_a_reward_is_understood(value: Any, rewards: dict[str, float]) -> None:
    returned = parse_return(value)
    assert list(returned.rewards.items()) == list(rewards.items())
    assert returned.invalid is None


class Scalar:
    def item(self) -> float:
        return 0.25


def test_a_scalar_of_numpy_or_torch_is_a_number() -> None:
    assert parse_return(Scalar()).rewards == {"primary": 0.25}


class Awkward:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, 10**400, "1.0", b"x", object(), Awkward(), [1], (1, 2), {}, {"a": 1, "b": 2}),
        *({"a": "x"}, {"a": math.nan}, ({"a": 1}, "b"), "\ud800", {Awkward(): 1}),
    ],
)
def test_anything_else_is_invalid_and_described(value: Any) -> None:
    returned = parse_return(value)
    assert returned.rewards == {}
    assert returned.invalid is not None
    assert returned.invalid.startswith("the agent returned ")
    orjson.dumps({"value": returned.value, "invalid": returned.invalid})


def test_a_small_value_is_kept_for_graders_and_a_large_one_is_not() -> None:
    assert parse_return({"answer": [1, "x"]}).value == {"answer": [1, "x"]}
    assert parse_return("x" * 2_000_000).value is None


def test_a_list_of_spans_is_sent_as_it_is() -> None:
    returned = parse_return([{"name": "tool", "attributes": {"a": {"b": 1}}, "start_time": 5, "end_time": 6.5}])
    assert returned.invalid is None
    assert returned.spans[0]["attributes"] == {"a.b": 1}
    assert (returned.spans[0]["start_time"], returned.spans[0]["end_time"]) == (5.0, 6.5)


def test_opentelemetry_spans_keep_ids_times_parent_status_events_and_links() -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("outer", attributes={"tags": ("a", "b")}) as outer:
        link = Link(outer.get_span_context(), {"why": "cause"})
        with tracer.start_as_current_span("inner", links=[link]) as inner:
            inner.add_event("happened", {"n": 1}, timestamp=1_700_000_000_500_000_000)
            inner.set_status(Status(StatusCode.ERROR, "no luck"))
    returned = parse_return([inner, outer])
    assert returned.invalid is None
    child, parent = (SpanRecord.model_validate(span) for span in returned.spans)
    context = outer.get_span_context()
    assert (parent.trace_id, parent.span_id) == (format(context.trace_id, "032x"), format(context.span_id, "016x"))
    assert (parent.parent_id, parent.status, parent.attributes) == (None, "UNSET", {"tags": ["a", "b"]})
    assert (child.trace_id, child.parent_id) == (parent.trace_id, parent.span_id)
    assert (child.status, child.status_description) == ("ERROR", "no luck")
    assert isinstance(inner, ReadableSpan)
    assert inner.start_time
    assert inner.end_time
    assert (child.start_time, child.end_time) == (inner.start_time / 1e9, inner.end_time / 1e9)
    assert (child.extra.get("start_time_unix_nano"), child.extra.get("end_time_unix_nano")) == (
        inner.start_time,
        inner.end_time,
    )
    [event] = child.events
    assert (event.name, event.attributes, event.timestamp) == ("happened", {"n": 1}, 1_700_000_000.5)
    assert [(each.context.span_id, each.attributes) for each in child.links] == [(parent.span_id, {"why": "cause"})]
    assert child.resource.attributes["telemetry.sdk.language"] == "python"


def test_an_opentelemetry_span_without_a_context_keeps_its_times_and_gets_ids() -> None:
    readable = ReadableSpan("made", start_time=1_700_000_000_500_000_000, end_time=1_700_000_001_000_000_000)
    (span,) = parse_return([readable]).spans
    assert (span["name"], span["start_time"], span["end_time"]) == ("made", 1_700_000_000.5, 1_700_000_001.0)
    assert (len(span["trace_id"]), len(span["span_id"])) == (32, 16)


def test_an_opentelemetry_span_written_as_json_has_the_same_content() -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner") as inner:
        inner.set_status(Status(StatusCode.ERROR, "no luck"))
        inner.add_event("happened", timestamp=1_700_000_000_500_000_000)
    assert isinstance(inner, ReadableSpan)
    (plain,), (written,) = (parse_return([one]).spans for one in (inner, orjson.loads(inner.to_json())))
    names = ("trace_id", "span_id", "parent_id", "status", "status_description")
    assert [written[name] for name in names] == [plain[name] for name in names]
    for name in ("start_time", "end_time"):
        assert written[name] == pytest.approx(plain[name], abs=1e-5)
    assert SpanRecord.model_validate(written).events[0].timestamp == 1_700_000_000.5


def test_a_reward_in_a_returned_opentelemetry_span_counts() -> None:
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.75}
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("agentlightning.annotation", attributes=attributes) as span:
        pass
    assert find_final_reward(parse_return([span]).spans) == 0.75


def test_spans_of_the_rollout_store_keep_their_fields() -> None:
    span = Span(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=3,
        trace_id="0" * 31 + "a",
        span_id="0" * 15 + "b",
        parent_id="0" * 15 + "c",
        name="tool",
        status=TraceStatus(status_code="ERROR", description="broken"),
        start_time=5.25,
        end_time=None,
        events=[Event(name="happened")],
    )
    for form in (span, span.model_dump()):
        (sent,) = parse_return([form]).spans
        kept = ("trace_id", "span_id", "parent_id", "name", "start_time", "events")
        assert {name: sent[name] for name in kept} == span.model_dump(include=set(kept))  # type: ignore[literal-required]
        assert (sent["status"], sent["status_description"], sent["end_time"]) == ("ERROR", "broken", None)


def test_spans_of_emitters_may_be_returned() -> None:
    made = make_span("step", {"a": 1})
    assert parse_return([made]).spans == [made]


def test_a_span_whose_attributes_raise_is_invalid() -> None:
    class Broken:
        name = "step"
        attributes = None

        @property
        def context(self) -> Any:
            raise RuntimeError("gone")

    returned = parse_return([Broken()])
    assert returned.spans == []
    assert returned.invalid is not None
    assert "gone" in returned.invalid


@settings(max_examples=examples(50))
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_every_return_value_is_accepted_or_refused(value: Any) -> None:
    returned = parse_return(value)
    assert all(math.isfinite(reward) for reward in returned.rewards.values())
    orjson.dumps([returned.value, returned.invalid, returned.rewards])
