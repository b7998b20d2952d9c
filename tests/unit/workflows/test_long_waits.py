"""A day of each wait stays far within Temporal's limit of 51,200 events, and a continue-as-new in it loses nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from relight.types import names
from relight.types.payloads import (
    BatchAnswer,
    BatchReport,
    ChangeResult,
    EngineState,
    EvaluationResult,
    GpuClaim,
    GradeInput,
    NextRollouts,
    PreflightState,
    Readiness,
    RolloutInput,
    RolloutResult,
    RunState,
    StepPlan,
)
from relight.types.rollout import MOST_ATTEMPTS, FailureClass, RolloutConfig
from relight.workflows import EvaluationWorkflow, RolloutBatchWorkflow, RolloutWorkflow, TrainingWorkflow
from tests.support.orchestration import run_file
from tests.support.simulated import ALREADY_STARTED, ENDS_EARLY, RUNS, SimulatedServer, always

DAY = timedelta(hours=24)
LONG = timedelta(hours=8)
"""Long enough for a continue-as-new in most waits, after which all is as before: a day shows nothing more."""
MOST_EVENTS = 51_200
"""Of one execution, by Temporal's default settings."""
LONGEST_HISTORY = 5_000
"""Events of one execution: the server suggests to continue as new at 4,096."""
A_DAY = 27_000
"""Events of all executions of a day: two looks and a timer a minute, and somewhat more often after each beginning."""
NO_RUNNER = Readiness(waiting_for="no runner serves agent 'echo'")
READY = Readiness()


def answers(**changes: Any) -> dict[str, Any]:
    """A run of one step that gets everything at once, but for what a test changes."""
    given: dict[str, Any] = {
        names.BEGIN_RUN: RunState(epoch=1, next_step=0, total_steps=1),
        names.CHECK_RUNNERS: READY,
        names.CLAIM_GPU: GpuClaim(granted=True, host="gpu", task_queue="relight-gpu.gpu"),
        names.PREPARE_ENGINES: EngineState(engines=1, version=0),
        names.PLAN_STEP: StepPlan(step=1, batches=10),
        names.BATCH_STATUS: BatchAnswer(),
        names.CHANGE_RUN: ChangeResult(accepted=True),
        names.UPDATE_POLICY: None,
        **changes,
    }
    return {name: value if callable(value) else always(value) for name, value in given.items()}


def simulated(changes: dict[str, Any], children: dict[str, str] | None = None, **file: Any) -> SimulatedServer:
    given = run_file(steps=1, data={"train": "train.jsonl"}) | file
    kinds = {names.BATCH_WORKFLOW: RUNS, names.EVALUATION_WORKFLOW: RUNS, **(children or {})}
    return SimulatedServer(TrainingWorkflow, "train/long", given, answers(**changes), kinds)


def fails_differently() -> Callable[[Any], ApplicationError]:
    number = itertools.count()
    return lambda step_input: ApplicationError(f"out of memory in process {next(number)}", type="TrainerError")


HELD = GpuClaim(granted=False, waiting_for="a GPU worker, held by other")
PAUSED = StepPlan(step=1, state="paused")
EVALUATED = {"data": {"train": "train.jsonl", "evaluation": "heldout.jsonl"}}
WAITS: dict[str, Callable[[], SimulatedServer]] = {
    "no runners": lambda: simulated({names.CHECK_RUNNERS: NO_RUNNER}),
    "a GPU that another run holds": lambda: simulated({names.CLAIM_GPU: HELD}),
    "a pause": lambda: simulated({names.PLAN_STEP: PAUSED, names.CHECK_RUNNERS: Readiness(paused=True)}),
    "ten slow batches": lambda: simulated({}),
    "ten slow batches without runners": lambda: simulated({names.BATCH_STATUS: BatchAnswer(**NO_RUNNER.model_dump())}),
    "ten batches that an older execution still runs": lambda: simulated({}, {names.BATCH_WORKFLOW: ALREADY_STARTED}),
    "batches that always end at once": lambda: simulated({names.BATCH_STATUS: BatchAnswer(ended=[0, 1, 2])}),
    "an older evaluation that is ending": lambda: simulated(
        {}, {names.EVALUATION_WORKFLOW: ALREADY_STARTED}, **EVALUATED
    ),
    "an older evaluation that is ending after a preflight": lambda: simulated(
        {names.ADVANCE_PREFLIGHT: PreflightState()},
        {names.EVALUATION_WORKFLOW: ALREADY_STARTED},
        preflight=True,
        **EVALUATED,
    ),
    "an update that fails in the same way": lambda: simulated(
        {
            names.PLAN_STEP: StepPlan(step=1, batches=0),
            names.UPDATE_POLICY: ApplicationError("loss is not finite", type="TrainerError"),
            names.CHECK_RUNNERS: Readiness(paused=True),
        }
    ),
    "an update that fails in another way each time": lambda: simulated(
        {names.PLAN_STEP: StepPlan(step=1, batches=0), names.UPDATE_POLICY: fails_differently()}
    ),
}


@pytest.mark.parametrize("wait", WAITS)
async def test_a_day_of_any_wait_stays_within_the_history_limit(wait: str) -> None:
    server = WAITS[wait]()
    await server.play(DAY)
    await server.close()
    assert not server.ended
    assert max(server.events) <= LONGEST_HISTORY
    assert sum(server.events) <= A_DAY
    assert server.executions > 1


async def test_an_older_preflight_beside_an_older_evaluation_is_waited_for_within_the_history_limit() -> None:
    older = PreflightState(rollouts=["long-preflight-train", "long-preflight-eval"])
    children = {names.ROLLOUT_WORKFLOW: ALREADY_STARTED, names.EVALUATION_WORKFLOW: ALREADY_STARTED}
    server = simulated({names.ADVANCE_PREFLIGHT: older}, children, preflight=True, **EVALUATED)
    await server.play(DAY)
    await server.close()
    assert not server.ended
    assert sum(server.events) <= 10_000


async def test_updates_that_a_gpu_host_always_loses_are_retried_with_growing_pauses() -> None:
    lost = ApplicationError("serves another run", type="HostChangedError")
    server = simulated({names.PLAN_STEP: StepPlan(step=1, batches=0), names.UPDATE_POLICY: lost})
    await server.play(LONG)
    await server.close()
    assert max(server.events) <= LONGEST_HISTORY
    assert server.waited.count(names.UPDATE_POLICY) <= 700


async def test_a_day_of_waiting_for_an_evaluation_an_update_or_a_grader_adds_no_events() -> None:
    evaluating = simulated({}, **EVALUATED)
    updating = simulated({names.PLAN_STEP: StepPlan(step=1, batches=0)})
    rollout = {
        "rollout_id": "long-s0001-g00-i0",
        "queue": "relight-runner.echo",
        "grader_queue": "relight-runner.judge",
    }
    handed_over = {
        "rollout_id": "long-s0001-g00-i0",
        "attempt_id": "a",
        "succeeded": True,
        "grader": "judge",
        "fence": 1,
    }
    waits: dict[str, Any] = {names.RUN_ATTEMPT: always(handed_over), names.GRADE_ATTEMPT: always(None)}
    grading = SimulatedServer(RolloutWorkflow, "rollout/long-s0001-g00-i0", rollout, waits)
    for server in (evaluating, updating, grading):
        await server.play(timedelta(minutes=1))
        before = sum(server.events)
        await server.play(DAY)
        await server.close()
        assert sum(server.events) == before


async def test_a_run_does_not_continue_as_new_while_a_child_is_open_that_this_would_cancel() -> None:
    rollouts = PreflightState(rollouts=["long-preflight-train"])
    for given in ({"history_limit": 20}, {"history_limit": 20, "preflight": True}):
        children = {names.ROLLOUT_WORKFLOW: RUNS}
        if "preflight" in given:
            children[names.EVALUATION_WORKFLOW] = ALREADY_STARTED  # so that the run waits beside its preflight
        server = simulated({names.ADVANCE_PREFLIGHT: rollouts}, children, **EVALUATED, **given)
        for minute in range(9):
            server.send(server.signal(names.NOTICE, {"run": "long", "epoch": 1}), timedelta(minutes=minute))
        await server.play(timedelta(minutes=9))
        await server.close()
        assert server.events[-1] > 40
        assert server.executions == 1


async def test_a_batch_that_is_held_for_days_continues_as_new_and_reopens_nothing() -> None:
    batch = {"run": "long", "epoch": 1, "step": 1, "batch": 0, "agent": "echo", "runner_queue": "relight-runner"}
    asked: list[bool] = []

    def advance(question: dict[str, Any]) -> NextRollouts:
        asked.append(question["fresh"])
        return NextRollouts(held="too much failed")

    server = SimulatedServer(RolloutBatchWorkflow, "train/long/step-1/batch-0", batch, {names.ADVANCE_BATCH: advance})
    server.send(server.signal(names.SET_CONCURRENCY, 3), timedelta(hours=1))
    await server.play(DAY)
    await server.close()
    assert server.executions > 1
    assert max(server.events) <= LONGEST_HISTORY
    assert asked[0] is True
    assert not any(asked[1:])
    assert server.arguments[-1]["concurrency"] == 3
    assert server.arguments[-1]["held"] == "too much failed"


BATCHES = [names.evaluation_batch_id("long", 0, number) for number in range(10)]
CLOSED = BatchReport(run="long", step=0, kind="eval", batch=0)


def evaluation(**children: Any) -> SimulatedServer:
    given = {"run": "long", "epoch": 1, "version": 0, "agent": "echo", "runner_queue": "relight-runner"}
    activities = {
        names.PLAN_EVALUATION: always(StepPlan(step=0, batches=len(BATCHES))),
        names.RECORD_EVALUATION: always(EvaluationResult(version=0)),
    }
    return SimulatedServer(EvaluationWorkflow, "train/long/eval-0", given, activities, children)


@pytest.mark.parametrize("state", [ALREADY_STARTED, ENDS_EARLY])
async def test_batches_beside_an_unfinished_evaluation_stay_within_the_history_limit(state: str) -> None:
    server = evaluation(**{names.BATCH_WORKFLOW: state, BATCHES[3]: CLOSED})
    await server.play(timedelta(hours=3))
    await server.close()
    assert not server.ended
    assert server.executions > 1
    assert max(server.events) <= LONGEST_HISTORY
    assert server.arguments[-1]["closed"] == [3]
    assert server.cancelled == []


async def test_an_evaluation_beside_an_open_batch_waits_within_the_history_limit_and_does_not_cancel_it() -> None:
    children = {names.BATCH_WORKFLOW: ALREADY_STARTED, BATCHES[3]: RUNS}
    server = evaluation(**children)
    await server.play(DAY)
    assert server.executions == 1
    assert server.events[0] <= 10_000
    server.children = dict.fromkeys(children, CLOSED)
    await server.play(timedelta(hours=1))
    assert server.executions == 1
    assert [*server.open_children.values()] == [BATCHES[3]]
    server.end_child(BATCHES[3], CLOSED)
    await server.play(timedelta(minutes=1))
    await server.close()
    assert server.ended
    assert server.waited.count(names.RECORD_EVALUATION) == 1
    assert server.cancelled == []


async def test_a_closed_batch_signals_its_run_by_the_name_that_live_runs_know() -> None:
    batch = {"run": "long", "epoch": 1, "step": 1, "batch": 0, "agent": "echo", "runner_queue": "q", "notify": True}
    closed = NextRollouts(report=BatchReport(run="long", step=1, batch=0))
    server = SimulatedServer(
        RolloutBatchWorkflow, "train/long/step-1/batch-0", batch, {names.ADVANCE_BATCH: always(closed)}
    )
    await server.play(timedelta(minutes=1))
    await server.close()
    assert server.ended
    assert server.signalled == [("train/long", "batch_done")]  # the replay does not compare names of signals


async def test_rollouts_that_an_older_batch_still_runs_are_waited_for_within_the_history_limit() -> None:
    batch = {"run": "long", "epoch": 1, "step": 1, "batch": 0, "agent": "echo", "runner_queue": "relight-runner"}
    left = {(group, 0) for group in range(200)}

    def advance(question: dict[str, Any]) -> NextRollouts:
        left.difference_update((group, index) for group, index in question["lost"])
        if not left:
            return NextRollouts(report=BatchReport(run="long", step=1, batch=0, failed=200))
        return NextRollouts(rollouts=[(*step_input, 1) for step_input in sorted(left)])

    server = SimulatedServer(
        RolloutBatchWorkflow,
        "train/long/step-1/batch-0",
        batch,
        {names.ADVANCE_BATCH: advance},
        {names.ROLLOUT_WORKFLOW: ALREADY_STARTED},
    )
    await server.play(timedelta(minutes=3))
    await server.close()
    assert server.ended
    assert sum(server.events) <= 10_000


async def test_a_rollout_goes_on_after_its_thousandth_try() -> None:
    failing = RolloutResult(rollout_id="long-s0001-g00-i0", failure_class=FailureClass.TIMEOUT)
    config = RolloutConfig(max_attempts=1027, retry_condition=[FailureClass.TIMEOUT])
    rollout = RolloutInput(run="long", epoch=1, rollout_id=failing.rollout_id, queue="q", config=config, first_try=1020)
    server = SimulatedServer(RolloutWorkflow, failing.rollout_id, rollout, {names.RUN_ATTEMPT: always(failing)})
    await server.play(timedelta(hours=1))
    await server.close()
    assert server.ended
    assert server.waited.count(names.RUN_ATTEMPT) == 8


async def test_a_rollout_with_the_most_tries_that_are_all_graded_stays_within_temporals_limit() -> None:
    rollout_id = "long-s0001-g00-i0"
    grade = GradeInput(run="long", rollout_id=rollout_id, attempt_id="a", fence=1, grader="judge")
    graded = RolloutResult.taken_from(grade, succeeded=True, grade=grade)
    failing = RolloutResult(rollout_id=rollout_id, failure_class=FailureClass.GRADER_ERROR)
    config = RolloutConfig(max_attempts=MOST_ATTEMPTS, retry_condition=[FailureClass.GRADER_ERROR])
    rollout = RolloutInput(run="long", epoch=1, rollout_id=rollout_id, queue="q", config=config)
    activities = {names.RUN_ATTEMPT: always(graded), names.GRADE_ATTEMPT: always(failing)}
    server = SimulatedServer(RolloutWorkflow, rollout_id, rollout, activities)
    await server.play(2 * DAY)
    await server.close()
    assert server.ended
    assert server.waited.count(names.RUN_ATTEMPT) == MOST_ATTEMPTS
    assert server.events[0] < MOST_EVENTS


async def test_a_runs_state_is_carried_through_a_continue_as_new() -> None:
    server = simulated({})
    report = {"run": "long", "step": 1, "batch": 3, "succeeded": 7, "failed": 1, "failures": {"timeout": 1}}
    server.send(server.signal(names.BATCH_DONE, report), timedelta(minutes=2))
    server.send(server.signal(names.PAUSE, {"reason": "for the test"}), timedelta(minutes=3))
    await server.play(LONG)
    await server.close()
    started = server.waited.count(names.PLAN_STEP)
    cursor = server.arguments[-1]["cursor"]
    assert started == server.executions
    assert len(cursor["started"]) == 10
    assert cursor["closed"] == [[1, 3]]
    assert cursor["counters"] == {"rollouts": 8, "retried": 0, "timeout": 1}
    assert (cursor["phase"], cursor["paused"]) == ("sampling", True)


async def test_failures_of_an_update_are_counted_across_a_wait_for_another_host() -> None:
    """Two failures, then the host is lost, hours go by, and the third failure comes: the run pauses itself."""
    outcomes = [ApplicationError("loss is not finite", type="TrainerError")] * 2
    outcomes += [ApplicationError("serves another run", type="HostChangedError"), outcomes[0]]
    claims = [GpuClaim(granted=True, host="gpu", task_queue="relight-gpu.gpu")]
    changes: list[str] = []

    def update(step_input: Any) -> Any:
        return outcomes.pop(0) if outcomes else None

    def claim(run: Any) -> GpuClaim:
        return claims.pop() if claims else HELD

    def change(asked: dict[str, Any]) -> ChangeResult:
        changes.append(asked["value"]["reason"])
        return ChangeResult(accepted=True)

    own = {names.UPDATE_POLICY: update, names.CLAIM_GPU: claim, names.CHANGE_RUN: change}
    given = answers(**own, **{names.PLAN_STEP: StepPlan(step=1, batches=0)})
    file = run_file(steps=1, data={"train": "train.jsonl"})
    server = SimulatedServer(TrainingWorkflow, "train/long", file, given)
    await server.play(LONG)
    assert server.executions > 1
    assert server.arguments[-1]["cursor"]["failures"] == ["loss is not finite"] * 2
    assert changes == []
    claims.append(GpuClaim(granted=True, host="gpu", task_queue="relight-gpu.gpu"))
    await server.play(timedelta(minutes=2))
    await server.close()
    assert changes == ["update of step 1 failed 3 times: loss is not finite"]


async def test_an_update_and_a_signal_that_arrive_during_a_continue_as_new_are_done() -> None:
    done: list[str] = []

    def change(asked: dict[str, Any]) -> ChangeResult:
        done.append(asked["action"])
        return ChangeResult(accepted=True)

    report = {"run": "long", "step": 1, "batch": 3, "succeeded": 8}
    for early in (names.BATCH_DONE, names.STOP_AFTER_STEP, names.PAUSE):
        done.clear()
        given = {**answers(), names.CHANGE_RUN: change}
        file = run_file(steps=1, data={"train": "train.jsonl"})
        server = SimulatedServer(TrainingWorkflow, "train/long", file, given, {names.BATCH_WORKFLOW: RUNS})
        server.at_continue = [
            server.signal(names.BATCH_DONE, report),
            server.update("the-update", names.STOP_AFTER_STEP, {"step": 1}),
            server.signal(names.PAUSE, {"reason": "for the test"}),
        ]
        server.at_continue.sort(key=lambda job, first=early: first not in str(job))
        await server.play(LONG)
        await server.close()
        cursor = server.arguments[-1]["cursor"]
        assert server.at_continue == []
        assert sorted(done) == [names.PAUSE, names.STOP_AFTER_STEP]
        assert server.answered["the-update"]["accepted"]
        assert cursor["closed"] == [[1, 3]]
        assert cursor["paused"] is True
        assert server.executions > 1


async def test_a_wait_polls_soon_at_first_then_once_a_minute_and_at_once_after_a_message() -> None:
    server = simulated({names.CHECK_RUNNERS: NO_RUNNER})
    await server.play(timedelta(minutes=1))
    assert server.waited.count(names.CHECK_RUNNERS) >= 7
    await server.play(timedelta(hours=1))
    before = server.waited.count(names.CHECK_RUNNERS)
    await server.play(timedelta(minutes=10))
    assert server.waited.count(names.CHECK_RUNNERS) - before in (9, 10, 11)
    before = server.waited.count(names.CHECK_RUNNERS)
    server.send(server.signal(names.NOTICE, {"run": "long", "epoch": 1}), timedelta(seconds=1))
    await server.play(timedelta(seconds=2))
    await server.close()
    assert server.waited.count(names.CHECK_RUNNERS) == before + 1


async def test_pending_evaluations_of_a_run_are_bounded_and_none_is_done_twice() -> None:
    known = {version: version / 100 for version in range(40)}
    state = RunState(epoch=1, next_step=39, total_steps=60, evaluations=known, evaluated=40)
    server = simulated({names.BEGIN_RUN: state, names.CHECK_RUNNERS: NO_RUNNER}, **EVALUATED)
    await server.play(LONG)
    await server.close()
    kept = server.arguments[-1]["cursor"]["evaluations"]
    assert sorted(map(int, kept)) == [0, *range(30, 40)]
    assert server.arguments[-1]["cursor"]["evaluated"] == 40
