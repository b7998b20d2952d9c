"""Progress says what happened once, in order, and what happens now."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from relight.cli.progress import (
    OLD_STEPS,
    ProgressReporter,
    RunOutcome,
    RunSnapshot,
    held_out_summary,
    status_line,
    step_event,
    summary_lines,
)
from relight.types.views import Counts, OpenEvaluation

from .example_views import NOW, a_run, a_step, an_engine, an_evaluation


def texts(narrator: ProgressReporter, snapshot: RunSnapshot) -> list[str]:
    return [event.text for event in narrator.events(snapshot)]


def test_a_step_line_has_rollouts_failures_reward_and_seconds_by_phase() -> None:
    assert step_event(a_step(7), 60).text == (
        "step  7/60  128 rollouts, 2 failed (agent_error 2), 1 retried  reward 0.500"
        "  3.4 s (plan 0.1, rollouts 2.0, update 0.8, publish 0.2, other 0.3)"
    )


def test_a_step_whose_groups_were_all_dropped_shows_it() -> None:
    assert "(weights unchanged)" in step_event(a_step(7, unchanged=True), 60).text


def test_a_step_with_skipped_optimizer_steps_shows_how_many_and_why() -> None:
    metrics = {"optimizer_steps": 1.0, "nonfinite_steps": 2.0, "rejected_steps": 0.0}
    assert "optimizer steps skipped of 3: 2 gradient not finite" in step_event(a_step(7, metrics=metrics), 60).text
    assert "skipped" not in step_event(a_step(7, metrics={"optimizer_steps": 1.0}), 60).text


def test_a_step_without_figures_still_makes_a_line() -> None:
    assert step_event(a_step(1, rollouts=Counts(), reward=None, seconds={}), None).text == (
        "step 1  0 rollouts, 0 failed, 0 retried  reward -"
    )


def test_an_evaluation_is_shown_after_the_step_that_made_its_version() -> None:
    view = a_run(evaluations=[an_evaluation(0), an_evaluation(1, 0.6)])
    assert [text.split()[0:2] for text in texts(ProgressReporter(), RunSnapshot(view, [a_step(1), a_step(2)]))] == [
        ["held-out", "score"],
        ["step", "1/60"],
        ["held-out", "score"],
        ["step", "2/60"],
    ]


def test_nothing_is_printed_twice() -> None:
    narrator = ProgressReporter()
    view = a_run(evaluations=[an_evaluation(0)], waiting_for="a runner that serves 'calculator'")
    assert len(texts(narrator, RunSnapshot(view, [a_step(1)]))) == 3
    assert texts(narrator, RunSnapshot(view)) == []


def test_an_evaluation_in_which_all_failed_is_shown_too() -> None:
    view = a_run(evaluations=[an_evaluation(0, 0.0, failed=240)])
    assert texts(ProgressReporter(), RunSnapshot(view)) == [
        "held-out score of version 0: 0.000 (reward - of 0 samples, 240 failed, 3.0 s)"
    ]


def test_an_evaluation_shows_score_reward_and_pass_at_k_of_each_data_source() -> None:
    sums = {"score": 0.6, "reward": 0.8, "rewarded": 30, "failed": 10, "tasks": 10, "samples": 4, "pass_at_k": 0.9}
    view = a_run(
        evaluations=[
            an_evaluation(3, 0.6, failed=60, samples=4, pass_at_k=0.9, spread=0.25, sources={"sums": sums}),
        ]
    )
    assert texts(ProgressReporter(), RunSnapshot(view)) == [
        "held-out score of version 3: 0.600 (reward 0.800 of 180 samples, 60 failed, pass@4 0.900, spread 0.250, 3.0 s)"
        "; sums 0.600 (reward 0.800 of 30 samples, 10 failed, pass@4 0.900, spread -)"
    ]
    lines = summary_lines(view)
    assert "held-out  v3 0.600 (reward 0.800, 60 failed)" in lines
    assert "by source v3 sums: 0.600 (reward 0.800 of 30 samples, 10 failed, pass@4 0.900, spread -)" in lines


def test_an_evaluation_without_a_result_is_not_shown_yet() -> None:
    assert texts(ProgressReporter(), RunSnapshot(a_run(evaluations=[an_evaluation(0, None)]))) == []


def test_what_a_run_waits_for_is_printed_when_it_changes() -> None:
    narrator = ProgressReporter()
    assert texts(narrator, RunSnapshot(a_run(waiting_for="a GPU worker, held by calc-0"))) == [
        "waiting: a GPU worker, held by calc-0"
    ]
    assert texts(narrator, RunSnapshot(note="waiting: the store service does not answer")) == [
        "waiting: the store service does not answer"
    ]
    assert texts(narrator, RunSnapshot(a_run())) == []
    assert texts(narrator, RunSnapshot(a_run(paused=True, pause_reason="lunch"))) == [
        "paused: lunch; to go on: `relight resume calc-1`"
    ]
    assert texts(narrator, RunSnapshot(a_run(paused=True, cancel_requested=NOW))) == ["being cancelled"]


def test_a_late_watcher_gets_the_newest_steps_and_all_evaluations() -> None:
    view = a_run(step=40, evaluations=[an_evaluation(0), an_evaluation(20, 0.7)])
    lines = texts(ProgressReporter(), RunSnapshot(view, [a_step(number) for number in range(1, 41)]))
    assert lines[0] == "(30 earlier steps)"
    assert sum(line.startswith("step") for line in lines) == OLD_STEPS
    assert sum(line.startswith("held-out") for line in lines) == 2


def test_the_end_comes_last_with_its_reason() -> None:
    snapshot = RunSnapshot(a_run(status="failed"), [a_step(1)], RunOutcome("failed", "model policy: no weights"))
    assert texts(ProgressReporter(), snapshot)[-1] == "the run failed: model policy: no weights"


def test_the_status_line_shows_what_is_in_progress() -> None:
    counts = Counts(planned=128, queued=8, running=32, succeeded=87, failed=1, failures={"timeout": 1}, retried=2)
    step = a_step(13, status="planned", rollouts=counts)
    text = "step 13/60  sampling: 88/128 rollouts done, 32 running, 1 failed (timeout 1), 2 retried"
    assert status_line(RunSnapshot(a_run(open_step=step, engines=[an_engine()]))) == text
    dead = a_run(open_step=step, engines=[an_engine(state="dead")])
    assert status_line(RunSnapshot(dead)) == f"{text}; model calls wait for an engine"
    assert status_line(RunSnapshot(a_run(open_step=step, phase="updating"))) == "step 13/60  updating"
    evaluation = OpenEvaluation(version=10, rollouts=counts)
    assert status_line(RunSnapshot(a_run(phase="evaluating", open_evaluation=evaluation))).startswith(
        "evaluating version 10: 88/128 rollouts done"
    )
    assert status_line(RunSnapshot(a_run(waiting_for="a runner"))) == "step 0/60  waiting: a runner"
    assert status_line(RunSnapshot()) == "starting"
    assert status_line(RunSnapshot(a_run(phase="starting"))) == "starting"


def test_the_held_out_summary_goes_from_the_given_model_to_the_newest() -> None:
    evaluations = [an_evaluation(20, 0.931), an_evaluation(0, 0.5249), an_evaluation(10, 0.99)]
    assert held_out_summary(evaluations) == "held-out score: 0.52 -> 0.93"
    assert held_out_summary(evaluations[:1]) is None
    assert held_out_summary([an_evaluation(0), an_evaluation(5, None, failed=240)]) is None


def test_a_run_at_a_glance_names_its_error() -> None:
    lines = summary_lines(a_run(status="failed", error="no weights", published=3, checkpointed=2))
    assert "error     no weights" in lines
    assert "versions  newest published: 3; newest checkpoint: version 2" in lines


@given(cuts=st.lists(st.integers(0, 30), max_size=6), evaluated=st.sets(st.integers(0, 30)))
def test_every_step_and_evaluation_is_shown_once_whenever_the_run_is_polled(
    cuts: list[int], evaluated: set[int]
) -> None:
    narrator = ProgressReporter()
    events = narrator.events(RunSnapshot(a_run()))
    bounds = [0, *sorted(cuts), 30]
    for first, last in itertools.pairwise(bounds):
        view = a_run(evaluations=[an_evaluation(version) for version in sorted(evaluated) if version <= last])
        events += narrator.events(RunSnapshot(view, [a_step(number) for number in range(first + 1, last + 1)]))
    assert [event.data["step"] for event in events if event.kind == "step"] == list(range(1, 31))
    assert sorted(event.data["version"] for event in events if event.kind == "evaluation") == sorted(evaluated)
