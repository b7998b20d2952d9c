"""What is made of what an agent's process sends, whatever that is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.emitter.emit import reward_attributes, reward_dimensions
from relight.emitter.scope import make_span
from relight.runner.captured_output import OutputTail
from relight.runner.collector import Collector
from relight.runner.fork_server_reports import ExitReport
from relight.semconv import AGL_ANNOTATION
from relight.types.rollout import FailureClass
from tests.unit.runner.support import call


def _collector(*messages: dict[str, Any], **options: Any) -> Collector:
    collector = Collector(call("well", **options), None)
    for message in messages:
        collector.take(message, 10)
    return collector


def _reward(value: float) -> dict[str, Any]:
    return {"op": "span", "span": make_span(AGL_ANNOTATION, reward_attributes(reward_dimensions(value)))}


def test_the_returned_reward_counts_more_than_what_was_emitted_before() -> None:
    outcome = _collector(_reward(0.1), {"op": "result", "value": 0.5, "rewards": {"primary": 0.5}}).outcome(
        ExitReport()
    )
    assert outcome.reward == 0.5


def test_the_last_emitted_reward_counts_where_nothing_was_returned() -> None:
    outcome = _collector(_reward(0.1), _reward(0.2), {"op": "result", "value": None, "rewards": {}}).outcome(
        ExitReport()
    )
    assert (outcome.kind, outcome.reward, len(outcome.spans)) == ("returned", 0.2, 2)


def test_a_result_that_came_before_the_kill_stands() -> None:
    collector = _collector({"op": "result", "value": 1, "rewards": {"primary": 1.0}})
    collector.kill(FailureClass.TIMEOUT, "too late")
    assert collector.outcome(ExitReport(signal=9)).kind == "returned"


def test_a_result_that_came_after_the_kill_does_not() -> None:
    collector = _collector()
    collector.kill(FailureClass.TIMEOUT, "first")
    collector.kill(FailureClass.CANCELLED, "second")
    collector.take({"op": "result", "value": 1, "rewards": {"primary": 1.0}}, 10)
    outcome = collector.outcome(ExitReport(signal=9))
    assert (outcome.kind, outcome.reason, outcome.detail) == ("killed", FailureClass.TIMEOUT, "first")


def test_a_second_result_is_ignored() -> None:
    outcome = _collector(
        {"op": "error", "error": {"type": "E", "message": "m", "traceback": "t"}},
        {"op": "result", "value": 1, "rewards": {"primary": 1.0}},
    ).outcome(ExitReport())
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
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
messages = st.fixed_dictionaries(
    {"op": st.sampled_from(["span", "result", "error", "output", "dropped", "nonsense"])},
    optional={
        "span": json | st.builds(lambda text: make_span("message", {"text": text}), st.text(max_size=5)),
        **dict.fromkeys(("value", "invalid", "rewards", "error", "text", "out_of_memory"), json),
    },
)


@given(st.lists(messages, max_size=6))
def test_no_message_breaks_the_collector(sent: list[dict[str, Any]]) -> None:
    outcome = _collector(*sent).outcome(ExitReport(code=0))
    assert outcome.kind in ("returned", "raised", "died")
    assert outcome.reward is None or isinstance(outcome.reward, float)
    assert isinstance(outcome.message, str)
