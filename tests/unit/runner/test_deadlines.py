"""When an attempt is overdue, with a clock that the test turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relight.runner.deadlines import Deadlines, GrowingTotal
from relight.types.rollout import FailureClass, RolloutConfig

seconds = st.floats(0.01, 1000).map(lambda value: round(value, 2))
events = st.lists(st.tuples(seconds, st.sampled_from(["progress", "wait", "nothing"])), max_size=20)


def test_without_limits_no_deadline_passes() -> None:
    deadlines = Deadlines.of(RolloutConfig(), started=0.0)
    assert deadlines.next_at is None
    assert deadlines.due(1e9) is None


def test_an_attempt_times_out_whatever_it_does() -> None:
    deadlines = Deadlines(started=100.0, timeout_seconds=10.0).progressed(109.0)
    assert deadlines.due(109.9) is None
    assert deadlines.due(110.0) is FailureClass.TIMEOUT
    assert deadlines.describe(FailureClass.TIMEOUT) == "ran longer than timeout_seconds=10"


def test_the_heartbeat_deadline_counts_from_the_last_heartbeat() -> None:
    deadlines = Deadlines(started=0.0, unresponsive_seconds=5.0)
    assert deadlines.due(5.0) is FailureClass.UNRESPONSIVE
    assert deadlines.progressed(4.0).due(8.9) is None
    assert deadlines.progressed(4.0).due(9.0) is FailureClass.UNRESPONSIVE


def test_a_late_report_of_an_early_heartbeat_changes_nothing() -> None:
    deadlines = Deadlines(started=0.0, unresponsive_seconds=5.0).progressed(4.0)
    assert deadlines.progressed(2.0) == deadlines


def test_platform_time_before_a_heartbeat_does_not_extend_the_deadline_after_it() -> None:
    deadlines = Deadlines(started=0.0, unresponsive_seconds=5.0).excluding(100.0).progressed(101.0)
    assert deadlines.unresponsive_at == 106.0
    assert deadlines.excluding(103.0).unresponsive_at == 109.0


@given(seconds, seconds, events)
def test_no_deadline_passes_before_the_agent_itself_has_used_up_its_time(
    timeout: float, unresponsive: float, history: list[tuple[float, str]]
) -> None:
    """Against a model that counts the agent's own seconds one event at a time."""
    deadlines = Deadlines(0.0, timeout, unresponsive)
    now = own = silent = waited = 0.0
    for length, kind in history:
        now += length
        if kind == "wait":
            waited += length
        else:
            own += length
            silent += length
        if kind == "progress":
            deadlines = deadlines.excluding(waited).progressed(now)
            silent = 0.0
        deadlines = deadlines.excluding(waited)
        overdue = {
            due
            for due, used, limit in (
                (FailureClass.TIMEOUT, own, timeout),
                (FailureClass.UNRESPONSIVE, silent, unresponsive),
            )
            if used > limit + 1e-6
        }
        early = own < timeout - 1e-6 and silent < unresponsive - 1e-6
        due = deadlines.due(now)
        assert due is None if early else True
        assert due is not None if overdue else True


@given(seconds, seconds, seconds)
def test_a_check_at_next_at_finds_every_deadline(timeout: float, unresponsive: float, progress: float) -> None:
    deadlines = Deadlines(0.0, timeout, unresponsive).progressed(progress)
    assert deadlines.next_at is not None
    assert deadlines.due(deadlines.next_at) is not None
    assert deadlines.due(deadlines.next_at - 0.001) is None


@given(lives=st.lists(st.lists(st.floats(0, 100), max_size=5), max_size=5))
def test_a_counter_that_restarts_keeps_what_was_read(lives: list[list[float]]) -> None:
    total, expected = GrowingTotal(), 0.0
    seen = 0.0
    for life in lives:
        readings = sorted(life)
        for reading in [0.0, *readings]:
            seen = total.read(reading)
        expected += readings[-1] if readings else 0.0
    assert abs(seen - expected) < 1e-6
