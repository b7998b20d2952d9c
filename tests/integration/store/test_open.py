"""Opening attempts (rule 1, 4, 18), the same in every store."""

from __future__ import annotations

import asyncio

import pytest

from relight.errors import NotFoundError
from relight.types.resources import PromptTemplate
from relight.types.rollout import RolloutConfig
from tests.support.store_kit import PostgresKit, StoreKit, finish, open_, opened


async def test_an_opened_attempt_carries_all_that_a_runner_needs(kit: StoreKit) -> None:
    attempt = await opened(kit)
    assert (attempt.rollout_id, attempt.run, attempt.step, attempt.mode) == ("r1", "demo", 1, "train")
    assert attempt.input == {"question": "2*3"}
    assert attempt.sampling == {"temperature": 1.0, "top_k": -1}
    assert attempt.base_url == f"http://gateway/rollout/r1/attempt/{attempt.attempt_id}/v1"
    assert attempt.token.startswith("rl-")
    assert (attempt.config, attempt.alone, attempt.isolation) == (RolloutConfig(), False, "process")
    assert (await kit.rollout("r1")).status == "preparing"


async def test_resources_come_with_the_attempt(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    prompt = attempt.resources["prompt"]
    assert isinstance(prompt, PromptTemplate)
    assert prompt.template == "{question}?"


async def test_a_rollout_from_outside_brings_its_own_input(kit: StoreKit) -> None:
    await kit.add_rollout("outside", external=True)
    attempt = await opened(kit, "outside")
    assert (attempt.input, attempt.run, attempt.sampling) == ({"question": "outside"}, None, {})


async def test_a_rollout_that_does_not_exist_cannot_be_opened(kit: StoreKit) -> None:
    with pytest.raises(NotFoundError, match="r404"):
        await open_(kit, "r404")


async def test_the_same_execution_gets_the_same_attempt_and_token(kit: StoreKit) -> None:
    first = await opened(kit)
    assert await opened(kit) == first
    assert len(await kit.attempts("r1")) == 1


async def test_the_same_execution_gets_its_attempt_even_while_the_run_is_paused(kit: StoreKit) -> None:
    first = await opened(kit)
    await kit.set_run(paused=True)
    assert await opened(kit) == first


async def test_a_newer_execution_closes_the_earlier_attempt_as_a_death(kit: StoreKit) -> None:
    first = await opened(kit)
    second = await opened(kit, execution="x2")
    assert second.fence > first.fence
    assert second.sequence_id == 2
    assert second.token != first.token
    old, new = await kit.attempts("r1")
    assert (old.status, old.failure_class, old.ended) == ("failed", "infrastructure", True)
    assert not new.ended
    assert (await kit.rollout("r1")).deaths == 1


async def test_an_execution_that_was_taken_over_is_gone(kit: StoreKit) -> None:
    await opened(kit)
    await opened(kit, execution="x2")
    answer = await open_(kit)
    assert (answer.state, answer.attempt) == ("gone", None)
    assert len(await kit.attempts("r1")) == 2


async def test_a_try_that_succeeded_is_finished(kit: StoreKit) -> None:
    attempt = await opened(kit)
    outcome = await finish(kit, attempt, reward=0.5)
    for execution in ("x1", "x2"):
        answer = await open_(kit, execution=execution)
        assert (answer.state, answer.outcome) == ("finished", outcome)
    assert len(await kit.attempts("r1")) == 1


async def test_a_try_that_the_agent_failed_is_finished_and_the_next_try_opens(kit: StoreKit) -> None:
    await kit.add_rollout("r2", max_attempts=2, retry_condition=["agent_error"])
    outcome = await finish(kit, await opened(kit, "r2"), failure_class="agent_error", message="boom")
    answer = await open_(kit, "r2", execution="x2")
    assert (answer.state, answer.outcome) == ("finished", outcome)
    second = await opened(kit, "r2", try_number=2)
    assert second.sequence_id == 2
    assert (await kit.rollout("r2")).deaths == 0


async def test_an_earlier_try_is_gone_once_a_later_one_has_begun(kit: StoreKit) -> None:
    await opened(kit)
    await opened(kit, try_number=2, execution="x2")
    assert (await open_(kit, execution="x3")).state == "gone"


async def test_a_rollout_that_failed_for_good_opens_no_further_try(kit: StoreKit) -> None:
    outcome = await finish(kit, await opened(kit), failure_class="agent_error")
    answer = await open_(kit, try_number=2)
    assert (answer.state, answer.outcome) == ("finished", outcome)


async def test_after_a_platform_failure_the_same_execution_gets_a_fresh_attempt(kit: StoreKit) -> None:
    first = await opened(kit)
    await finish(kit, first, failure_class="infrastructure")
    second = await opened(kit)
    assert second.attempt_id != first.attempt_id
    assert (await kit.rollout("r1")).deaths == 0


async def test_a_paused_run_waits_and_leaves_no_row(kit: StoreKit) -> None:
    await kit.set_run(paused=True)
    answer = await open_(kit)
    assert (answer.state, answer.reason) == ("wait", "the run is paused")
    assert answer.retry_after_seconds > 0
    assert await kit.attempts("r1") == []
    await kit.set_run()
    await opened(kit)


async def test_a_pause_does_not_stop_attempts_in_progress(kit: StoreKit) -> None:
    await opened(kit)
    await kit.set_run(paused=True)
    assert (await open_(kit, execution="x2")).state == "wait"
    assert [attempt.ended for attempt in await kit.attempts("r1")] == [False]


async def test_a_run_that_is_not_running_opens_nothing(kit: StoreKit) -> None:
    await kit.set_run(status="interrupted", paused=True)
    answer = await open_(kit)
    assert (answer.state, answer.reason) == ("gone", "the run is interrupted")


@pytest.mark.parametrize(("state", "answer"), [("starting", "wait"), ("dead", "wait"), ("loading", "opened")])
async def test_without_an_engine_that_is_ready_or_loading_nothing_begins(
    kit: StoreKit, state: str, answer: str
) -> None:
    await kit.load(0, state=state)
    assert (await open_(kit)).state == answer


async def test_opening_a_cancelled_rollout_is_answered_gone(kit: StoreKit) -> None:
    await kit.cancel("r1")
    assert (await open_(kit)).state == "gone"


async def test_opening_a_rollout_of_a_closed_batch_is_answered_gone(kit: StoreKit) -> None:
    await kit.close("r1")
    assert (await open_(kit)).state == "gone"


async def test_a_rollout_is_isolated_after_two_process_deaths_and_quarantined_after_five(kit: StoreKit) -> None:
    alone = [(await opened(kit, execution=f"x{number}")).alone for number in range(1, 6)]
    assert alone == [False, False, True, True, True]
    answer = await open_(kit, execution="x6")
    assert answer.state == "finished"
    assert answer.outcome is not None
    assert answer.outcome.failure_class == "infrastructure"
    state = await kit.rollout("r1")
    assert (state.status, state.failure_class, state.deaths) == ("failed", "infrastructure", 5)
    assert (await open_(kit, execution="x7")).state == "finished"


async def test_a_rollout_whose_shared_process_dies_five_times_is_quarantined(kit: StoreKit) -> None:
    for number in range(1, 6):
        attempt = await opened(kit)
        assert (attempt.deaths, attempt.alone) == (number - 1, number > 2)
        await finish(kit, attempt, failure_class="infrastructure", message="the fork server died", died=True)
        await finish(kit, attempt, failure_class="infrastructure", message="sent twice", died=True)
    state = await kit.rollout("r1")
    assert (state.status, state.failure_class, state.deaths) == ("failed", "infrastructure", 5)
    answer = await open_(kit, execution="x3")
    assert answer.state == "finished"
    assert answer.outcome is not None
    assert answer.outcome.failure_class == "infrastructure"


async def test_a_platform_failure_that_took_no_process_with_it_is_no_death(kit: StoreKit) -> None:
    for number in range(6):
        attempt = await opened(kit, execution=f"x{number}")
        assert not attempt.alone
        await finish(kit, attempt, failure_class="infrastructure", message="the gateway was out of reach")
    assert (await kit.rollout("r1")).deaths == 0


async def test_many_executions_at_once_leave_one_open_attempt(postgres_kit: PostgresKit) -> None:
    answers = await asyncio.gather(*(open_(postgres_kit, execution=f"x{number % 4}") for number in range(16)))
    fences = {answer.attempt.fence for answer in answers if answer.attempt}
    attempts = await postgres_kit.attempts("r1")
    assert [attempt.ended for attempt in attempts].count(False) <= 1
    assert len(fences) == len(attempts)
    assert len(attempts) <= 4
