"""Graders: what they get, what they give, and that their failures are not the agent's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import pytest_asyncio
from temporalio.testing import ActivityEnvironment

from relight.errors import ConflictError
from relight.runner.attempt_activity import RunnerActivities
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.grading_activity import MAX_TRIES, GradingActivities
from relight.runner.process_isolation import IsolatedRunner
from relight.store.memory.attempts import MemoryAttemptStore
from relight.store.memory.rows import AttemptRow
from relight.types.payloads import AttemptInput, GradeInput, RolloutResult
from relight.types.rollout import FailureClass
from relight.types.wire import OpenedAttempt, OpenRequest
from tests.support.store_kit import call, grading_of
from tests.unit.runner import graders

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVED = [
    f"{graders.__file__}:{name}"
    for name, value in vars(graders).items()
    if inspect.isfunction(value) and value.__module__ == graders.__name__
]


class Reachable(GatewayProbe):
    """A gateway that is there."""

    async def reachable(self) -> bool:
        return True


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncGenerator[IsolatedRunner]:
    async with IsolatedRunner(SERVED) as started:
        yield started


async def awaiting_grading(store: MemoryAttemptStore) -> OpenedAttempt:
    """An attempt with one call, which waits for its grader."""
    store.add_run("demo", grader="judge")
    store.add_rollout("r1", input={"question": "7*8"})
    store.add_engine()
    answer = await store.open_attempt(OpenRequest(rollout_id="r1", try_number=1, execution="x", worker_id="w"))
    assert answer.attempt
    await store.commit_generations([call(answer.attempt)])
    await store.await_grading(grading_of(answer.attempt, output="thinking\n"))
    return answer.attempt


def grade_of(attempt: OpenedAttempt | AttemptRow, grader: str) -> GradeInput:
    return GradeInput(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, fence=attempt.fence, grader=grader)


@pytest.mark.parametrize(("grader", "reward"), [("judge", 0.875), ("judge_async", 0.5)])
async def test_a_grader_gets_task_calls_and_output_and_returns_the_reward(
    served: IsolatedRunner, grader: str, reward: float
) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    outcome = await GradingActivities(store, served).grade(grade_of(attempt, grader))
    assert (outcome.succeeded, outcome.reward, outcome.failure_class) == (True, reward, None)
    row = store.attempt(attempt.attempt_id)
    assert (row.ended, row.grader, row.left.output) == (True, grader, "thinking\n")


async def test_named_rewards_and_feedback_of_a_grader_are_kept(served: IsolatedRunner) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    outcome = await GradingActivities(store, served).grade(grade_of(attempt, "judge_by_name"))
    row = store.attempt(attempt.attempt_id)
    assert (outcome.reward, row.graded.rewards, row.graded.feedback) == (0.5, {"exact": 0.5, "short": 1.0}, "too long")


async def test_a_regrade_brings_the_primary_reward_and_fifteen_more_of_many(served: IsolatedRunner) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    grading = GradingActivities(store, served)
    result = await ActivityEnvironment().run(grading.regrade_attempt, grade_of(attempt, "judge_by_many_names"))
    assert result.named is not None
    assert list(result.named.dimensions) == ["part-19", *(f"part-{number:02d}" for number in range(15))]
    assert (result.reward, store.attempt(attempt.attempt_id).ended) == (19 / 16, False)


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ("raises", "grader 'raises': ValueError: no idea"),
        ("dies", "grader 'dies': the grader's process exited with 3 before it returned"),
        ("gives_nan", "grader 'gives_nan': the grader returned float nan"),
        ("gives_nothing", "grader 'gives_nothing': returned no number"),
        ("gives_words", "grader 'gives_words': the grader returned str 'very good'"),
        ("wants_a_model", "grader 'wants_a_model': ValueError: the agent asks for an LLM"),
        ("hangs", "grader 'hangs': gave no reward within 0.5 s"),
    ],
)
async def test_a_grader_without_a_valid_reward_fails_the_attempt_as_a_platform_failure(
    served: IsolatedRunner, grader: str, message: str
) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    timeout = 0.5 if grader == "hangs" else 60
    outcome = await GradingActivities(store, served, timeout).grade(grade_of(attempt, grader))
    assert (outcome.succeeded, outcome.reward) == (False, None)
    assert outcome.failure_class is FailureClass.GRADER_ERROR
    assert outcome.message.startswith(message)
    assert store.rollouts["r1"].failure_class is FailureClass.GRADER_ERROR


async def test_grading_twice_is_grading_once(served: IsolatedRunner) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    grading = GradingActivities(store, served)
    first = await grading.grade(grade_of(attempt, "judge"))
    assert await grading.grade(grade_of(attempt, "raises")) == first


async def test_what_a_newer_attempt_superseded_is_not_graded(served: IsolatedRunner) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    await store.open_attempt(OpenRequest(rollout_id="r1", try_number=1, execution="y", worker_id="w"))
    outcome = await GradingActivities(store, served).grade(grade_of(attempt, "judge"))
    assert outcome.failure_class is FailureClass.INFRASTRUCTURE
    stale = grade_of(await awaiting_grading(store), "judge").model_copy(update={"fence": attempt.fence})
    with pytest.raises(ConflictError):
        await GradingActivities(store, served).grade(stale)


async def test_a_grader_that_kills_its_runner_every_time_is_given_up(served: IsolatedRunner) -> None:
    store = MemoryAttemptStore()
    attempt = await awaiting_grading(store)
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=MAX_TRIES + 1)
    result = await environment.run(GradingActivities(store, served).grade_attempt, grade_of(attempt, "judge"))
    assert (result.failure_class, result.message) == ("grader_error", "grader 'judge': its runner was lost 10 times")


async def run_attempt(store: MemoryAttemptStore, served: IsolatedRunner, agent: str) -> RolloutResult:
    activities = RunnerActivities(store, served, Reachable("http://127.0.0.1:9"), agent, "runner-1")
    return await ActivityEnvironment().run(
        activities.run_attempt, AttemptInput(rollout_id="r1", try_number=1, run="demo")
    )


@pytest.mark.parametrize("agent", ["sure_of_itself", "talks"])
async def test_an_agent_that_is_graded_leaves_its_attempt_open_whatever_it_returned(
    served: IsolatedRunner, agent: str
) -> None:
    store = MemoryAttemptStore()
    store.add_run("demo", grader="judge_async")
    rollout = store.add_rollout("r1")
    result = await run_attempt(store, served, agent)
    (attempt,) = rollout.attempts
    assert (result.succeeded, result.reward) == (True, None)
    assert (attempt.ended, attempt.reward, rollout.status) == (False, None, "running")
    assert attempt.left.output == "thinking\n"
    assert bool(rollout.spans) == (agent == "sure_of_itself")
    grade = grade_of(attempt, "judge_async")
    assert result.grade == grade.model_copy(update={"run": "demo"})
    graded = await ActivityEnvironment().run(GradingActivities(store, served).grade_attempt, grade)
    assert (graded.reward, graded.grade, rollout.reward) == (0.5, None, 0.5)


async def test_a_failed_agent_is_not_graded(served: IsolatedRunner) -> None:
    store = MemoryAttemptStore()
    store.add_run("demo", grader="judge")
    store.add_rollout("r1")
    result = await run_attempt(store, served, "fails")
    assert (result.succeeded, result.failure_class, result.grade) == (False, "agent_error", None)
    assert store.rollouts["r1"].status == "failed"
