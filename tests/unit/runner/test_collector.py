"""What is made of what an agent's process sends, whatever that is."""

from __future__ import annotations

import math
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.emitter.emit import reward_attributes, reward_dimensions
from relight.emitter.scope import make_span
from relight.litagent.returns import parse_return
from relight.runner.captured_output import OutputTail
from relight.runner.collector import Collector
from relight.runner.forked_process import FROM_AGENT
from relight.runner.process_messages import ExitReport, FromAgent, Raised, SpanMessage
from relight.semconv import AGL_ANNOTATION
from relight.types.rollout import FailureClass
from tests.unit.runner.support import call


def _collector(*messages: FromAgent, **options: Any) -> Collector:
    collector = Collector(call("well", **options), None)
    for message in messages:
        collector.take(0, message, 10)
    return collector


def _reward(value: float) -> SpanMessage:
    return SpanMessage(make_span(AGL_ANNOTATION, reward_attributes(reward_dimensions(value))))


def test_the_returned_reward_counts_more_than_what_was_emitted_before() -> None:
    outcome = _collector(_reward(0.1), parse_return(0.5)).outcome(ExitReport())
    assert outcome.reward == 0.5


def test_the_last_emitted_reward_counts_where_nothing_was_returned() -> None:
    outcome = _collector(_reward(0.1), _reward(0.2), parse_return(None)).outcome(ExitReport())
    assert (outcome.kind, outcome.reward, len(outcome.spans)) == ("returned", 0.2, 2)


def test_a_result_that_came_before_the_kill_stands() -> None:
    collector = _collector(parse_return(1))
    collector.kill(FailureClass.TIMEOUT, "too late")
    assert collector.outcome(ExitReport(signal=9)).kind == "returned"


def test_a_result_that_came_after_the_kill_does_not() -> None:
    collector = _collector()
    collector.kill(FailureClass.TIMEOUT, "first")
    collector.kill(FailureClass.CANCELLED, "second")
    collector.take(0, parse_return(1), 10)
    outcome = collector.outcome(ExitReport(signal=9))
    assert (outcome.kind, outcome.reason, outcome.detail) == ("killed", FailureClass.TIMEOUT, "first")


def test_a_second_result_is_ignored() -> None:
    outcome = _collector(Raised("E", "m", "t"), parse_return(1)).outcome(ExitReport())
    assert (outcome.kind, outcome.reward) == ("raised", None)


@pytest.mark.parametrize(
    ("report", "limit", "expected"),
    [
        (ExitReport(signal=9, oom_killed=True), None, FailureClass.OUT_OF_MEMORY),
        (ExitReport(signal=9), None, FailureClass.AGENT_ERROR),
        (ExitReport(signal=6, peak_rss_bytes=90), 100, FailureClass.OUT_OF_MEMORY),
        (ExitReport(signal=6, peak_rss_bytes=20), 100, FailureClass.AGENT_ERROR),
        (ExitReport(code=3, peak_rss_bytes=90), 100, FailureClass.AGENT_ERROR),
        (ExitReport(lost="gone"), 100, FailureClass.INFRASTRUCTURE),
    ],
)
def test_a_death_is_classified_by_its_evidence(report: ExitReport, limit: int | None, expected: FailureClass) -> None:
    outcome = _collector(memory_limit_bytes=limit).outcome(report, OutputTail())
    assert (outcome.kind, outcome.failure_class) == ("died", expected)


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
kinds = st.sampled_from([*get_args(FromAgent), ExitReport])
fields = kinds.flatmap(lambda kind: st.fixed_dictionaries({}, optional=dict.fromkeys(kind.__dataclass_fields__, json)))
spans = st.builds(lambda text: {"span": make_span("message", {"text": text})}, st.text(max_size=5))
payloads = st.builds(
    lambda number, kind, fields: orjson.dumps([number, kind.__name__, fields]),
    st.just(0) | json,
    kinds,
    fields | spans | json,
)


def _received(*payloads: bytes) -> tuple[Collector, int]:
    """A collector that got what these hold, and how many of them are no message at all."""
    collector, refused = _collector(), 0
    for payload in payloads:
        try:
            _, message = FROM_AGENT.decode(payload)
        except ValueError:
            refused += 1
        else:
            collector.take(0, message or SpanMessage(None), len(payload))
    return collector, refused


@given(st.lists(payloads | st.binary(max_size=20), max_size=6))
def test_no_message_breaks_the_collector(sent: list[bytes]) -> None:
    outcome = _received(*sent)[0].outcome(ExitReport(code=0))
    assert outcome.kind in ("returned", "raised", "died")
    assert outcome.reward is None or math.isfinite(outcome.reward)
    assert isinstance(outcome.message, str)


@pytest.mark.parametrize(
    "payload",
    [
        b'[0,"Nonsense",{}]',
        b'[0,"ExitReport",{"code":0}]',
        b'[0,"Span",{}]',
        b'[0,"Span",{"span":{"name":"m"}}]',
        b'[0,"Output",{"text":1}]',
        b'[0,"Number",{"number":"one"}]',
        b'[0,"Number",{"number":-1}]',
        b'[0,"Number",{"number":1e300}]',
        b'[0,"Returned",{"rewards":{"primary":"much"}}]',
        b'[0,"Returned",{"rewards":{"primary":"nan"}}]',
        b'[0,"Raised",{"type":"E"}]',
        b'[0,"Blocked",{"seconds":[]}]',
        b'[0,"Hooks",[]]',
    ],
)
def test_a_malformed_message_is_counted_as_dropped(payload: bytes) -> None:
    collector, refused = _received(payload)
    outcome = collector.outcome(ExitReport(code=0))
    assert (refused, outcome.spans_dropped, outcome.kind) == (0, 1, "died")


@pytest.mark.parametrize("payload", [b"", b"\xff", b"{}", b"1", b'["0","Hooks",{}]', b'[0,"Hooks"]', b"[" * 2000])
def test_what_is_no_message_at_all_is_refused(payload: bytes) -> None:
    assert _received(payload)[1] == 1
