"""Finishing attempts (rule 1-3, 8), the same in every store."""

from __future__ import annotations

import asyncio
import math
import secrets

import pytest

from relight.cli.rollouts import rollout_lines
from relight.emitter.emit import reward_attributes
from relight.errors import ConflictError, NotFoundError
from relight.litagent.agent_arguments import Invocation
from relight.observability.redaction import Redactor
from relight.runner.agent_call import AgentCall
from relight.semconv import AGL_ANNOTATION
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.runs.views import RunViews
from relight.store.training import regrades
from relight.types.payloads import NamedRewards, RegradedRewards
from relight.types.resources import PromptTemplate
from relight.types.rollout import PLATFORM_FAILURES, AttemptStatus, FailureClass
from relight.types.store import Dispatch
from relight.types.wire import DeliveryMark, FinishRequest
from tests.support.lightning_kit import span_of
from tests.support.store_kit import PostgresKit, StoreKit, call, failure, finish, grading_of, open_, opened, span


async def test_a_success_closes_rollout_and_attempt_together(kit: StoreKit) -> None:
    attempt = await opened(kit)
    outcome = await finish(kit, attempt, reward=0.25)
    assert (outcome.succeeded, outcome.reward, outcome.failure_class, outcome.try_number) == (True, 0.25, None, 1)
    state = await kit.rollout("r1")
    assert (state.status, state.reward, state.failure_class) == ("succeeded", 0.25, None)
    assert [(row.status, row.reward, row.ended) for row in await kit.attempts("r1")] == [("succeeded", 0.25, True)]


async def test_a_reward_is_a_row_with_its_grader(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    await finish(postgres_kit, attempt, reward=0.25)
    rows = await postgres_kit.database.pool.fetch("select * from rewards")
    assert [(row["attempt_id"], row["grader"], row["value"]) for row in rows] == [(attempt.attempt_id, "agent", 0.25)]


@pytest.mark.parametrize("long_first", [True, False])
async def test_a_reward_of_any_name_ends_its_attempt(postgres_kit: PostgresKit, long_first: bool) -> None:
    long = secrets.token_hex(5000)
    named = {long: 1.0, "short": 0.5} if long_first else {"short": 1.0, long: 0.5}
    outcome = await finish(postgres_kit, await opened(postgres_kit), reward=1.0, rewards=named)
    rows = await postgres_kit.database.pool.fetch("select dimension, value from rewards order by value desc")
    assert outcome.succeeded
    assert [tuple(row) for row in rows] == [(name[:200], value) for name, value in named.items()]


async def test_a_pattern_that_matches_names_of_fields_changes_no_end(postgres_kit: PostgresKit) -> None:
    assert isinstance(postgres_kit.store, PostgresStore)
    postgres_kit.store.redactor = Redactor([r"[a-z_]{6,}"])
    left = {"output": "mountain", "output_bytes": 8, "duration_seconds": 1.5, "spans_dropped": 2}
    assert (await finish(postgres_kit, await opened(postgres_kit), reward=1.0, **left)).succeeded
    row = await postgres_kit.database.pool.fetchrow("select * from attempts")
    assert (row["output"], row["output_bytes"], row["seconds"], row["spans_dropped"]) == ("[redacted]", 8, 1.5, 2)


async def test_finishing_twice_is_finishing_once(kit: StoreKit) -> None:
    attempt = await opened(kit)
    first = await finish(kit, attempt, reward=0.25, spans=[span()])
    assert await finish(kit, attempt, reward=0.25, spans=[span()]) == first
    assert await finish(kit, attempt, failure_class="agent_error") == first
    assert len(await kit.spans("r1")) == 1


@pytest.mark.parametrize("failure_class", list(FailureClass))
async def test_each_failure_class_ends_the_rollout_under_its_name(kit: StoreKit, failure_class: FailureClass) -> None:
    outcome = await finish(kit, await opened(kit), failure_class=failure_class, message="why")
    assert (outcome.succeeded, outcome.failure_class, outcome.reward, outcome.message) == (
        False,
        failure_class,
        None,
        "why",
    )
    state, (attempt,) = await kit.rollout("r1"), await kit.attempts("r1")
    assert (attempt.status, attempt.failure_class) == (failure_class.attempt_status, failure_class)
    if failure_class is FailureClass.INFRASTRUCTURE:
        assert (state.status, state.failure_class) == ("requeuing", None)
    else:
        assert (state.status, state.failure_class) == (failure_class.rollout_status, failure_class)


@pytest.mark.parametrize("failure_class", sorted(PLATFORM_FAILURES - {FailureClass.INFRASTRUCTURE}))
async def test_a_platform_failure_may_be_retried_like_any_other(kit: StoreKit, failure_class: str) -> None:
    await kit.add_rollout("r2", max_attempts=2, retry_condition=[failure_class])
    await finish(kit, await opened(kit, "r2"), failure_class=failure_class)
    assert (await kit.rollout("r2")).status == "requeuing"
    await finish(kit, await opened(kit, "r2", try_number=2), failure_class=failure_class)
    assert (await kit.rollout("r2")).status == "failed"


async def test_retries_stop_at_max_attempts_and_a_later_success_counts(kit: StoreKit) -> None:
    await kit.add_rollout("r2", max_attempts=3, retry_condition=["timeout", "agent_error"])
    await finish(kit, await opened(kit, "r2"), failure_class="timeout")
    await finish(kit, await opened(kit, "r2", try_number=2), failure_class="agent_error")
    assert (await kit.rollout("r2")).status == "requeuing"
    await finish(kit, await opened(kit, "r2", try_number=3), reward=1.0)
    state = await kit.rollout("r2")
    assert (state.status, state.reward, state.attempts) == ("succeeded", 1.0, 3)


async def test_a_failure_that_is_not_in_the_retry_condition_is_final(kit: StoreKit) -> None:
    await kit.add_rollout("r2", max_attempts=3, retry_condition=["timeout"])
    await finish(kit, await opened(kit, "r2"), failure_class="agent_error")
    assert (await kit.rollout("r2")).status == "failed"


@pytest.mark.parametrize(
    ("reward", "failure_class"),
    [(None, "no_reward"), (math.nan, "invalid_reward"), (math.inf, "invalid_reward"), (-math.inf, "invalid_reward")],
)
async def test_a_missing_or_invalid_reward_is_a_failure_not_a_zero(
    kit: StoreKit, reward: float | None, failure_class: str
) -> None:
    outcome = await finish(kit, await opened(kit), reward=reward)
    assert (outcome.succeeded, outcome.failure_class, outcome.reward) == (False, failure_class, None)
    assert outcome.message
    assert (await kit.rollout("r1")).status == "failed"


async def test_a_failed_attempt_keeps_no_reward(kit: StoreKit) -> None:
    outcome = await finish(kit, await opened(kit), failure_class="timeout", reward=1.0)
    assert outcome.reward is None


async def test_a_superseded_attempt_cannot_finish_but_its_spans_are_kept(kit: StoreKit) -> None:
    old = await opened(kit)
    new = await opened(kit, execution="x2")
    with pytest.raises(ConflictError):
        await finish(kit, old, spans=[span("late")])
    assert await kit.spans("r1") == [(1, old.attempt_id, "late")]
    assert (await kit.rollout("r1")).status == "preparing"
    await finish(kit, new)


async def test_a_fence_that_is_not_the_attempts_own_is_a_conflict(kit: StoreKit) -> None:
    attempt = await opened(kit)
    with pytest.raises(ConflictError):
        await finish(kit, attempt, fence=attempt.fence + 1)
    assert (await kit.rollout("r1")).status == "preparing"


async def test_an_attempt_that_does_not_exist_cannot_finish(kit: StoreKit) -> None:
    with pytest.raises(NotFoundError, match="at-404"):
        await kit.store.finish_attempt(FinishRequest(attempt_id="at-404", fence=1))


async def test_a_cancelled_rollout_stays_cancelled_however_its_attempt_ends(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.cancel("r1")
    await finish(kit, attempt, reward=1.0)
    assert (await kit.rollout("r1")).status == "cancelled"
    assert [row.ended for row in await kit.attempts("r1")] == [True]


async def test_a_rollout_whose_batch_is_closed_keeps_its_status_however_its_attempt_ends(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.close("r1")
    await finish(kit, attempt, reward=1.0)
    state = await kit.rollout("r1")
    assert (state.status, state.reward) == ("preparing", None)


async def test_text_that_postgres_cannot_store_is_cleaned(kit: StoreKit) -> None:
    outcome = await finish(
        kit,
        await opened(kit),
        failure_class="agent_error",
        message="a\x00b",
        output="\x00",
        error={"type": "E\x00", "message": "\ud800"},
        duration_seconds=float("nan"),
    )
    assert outcome.message.replace("\x00", "") in ("ab", "a\N{REPLACEMENT CHARACTER}b")


@pytest.mark.parametrize("fields", [{"reward": 1.0}, {"failure_class": "agent_error"}])
async def test_a_call_that_the_platform_failed_makes_it_an_engine_error(
    kit: StoreKit, fields: dict[str, object]
) -> None:
    attempt = await opened(kit)
    await kit.store.record_call_failures([failure(attempt)])
    outcome = await finish(kit, attempt, **fields)
    assert (outcome.succeeded, outcome.failure_class, outcome.reward) == (False, "engine_error", None)


async def test_a_later_success_of_the_same_request_clears_a_failure(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.record_call_failures([failure(attempt, 1)])
    await kit.store.commit_generations([call(attempt, 2)])
    assert (await finish(kit, attempt)).succeeded


async def test_another_request_or_an_earlier_success_does_not_clear_a_failure(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.commit_generations([call(attempt, 1)])
    await kit.store.record_call_failures([failure(attempt, 2)])
    await kit.store.commit_generations([call(attempt, 3, "hash-2")])
    assert (await finish(kit, attempt)).failure_class == "engine_error"


async def test_a_timeout_stays_a_timeout_whatever_the_platform_failed(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.record_call_failures([failure(attempt)])
    assert (await finish(kit, attempt, failure_class="timeout")).failure_class == "timeout"


async def test_a_failure_with_a_wrong_token_or_of_a_dead_attempt_is_dropped(kit: StoreKit) -> None:
    dead = await opened(kit)
    attempt = await opened(kit, execution="x2")
    await kit.store.record_call_failures([failure(attempt, token_hash="wrong"), failure(dead)])
    assert (await finish(kit, attempt)).succeeded


async def test_unknown_deliveries_are_settled_when_the_attempt_ends(kit: StoreKit) -> None:
    attempt = await opened(kit)
    calls = [
        call(attempt, 1, "a", prompt_token_ids=[1]),
        call(attempt, 2, "a", prompt_token_ids=[1]),
        call(attempt, 3, "b", prompt_token_ids=[2]),
        call(attempt, 4, "c", prompt_token_ids=None),
        call(attempt, 5, "d", prompt_token_ids=None),
        call(attempt, 6, "c", prompt_token_ids=None),
        call(attempt, 7, "e", prompt_token_ids=[3]),
    ]
    await kit.store.commit_generations(calls)
    mark = DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=7, delivered="no")
    await kit.store.mark_delivered([mark])
    await finish(kit, attempt)
    settled = {1: "no", 2: "yes", 3: "yes", 4: "no", 5: "yes", 6: "yes", 7: "no"}
    assert await kit.deliveries(attempt.attempt_id) == settled
    await kit.store.mark_delivered([mark.model_copy(update={"delivered": "yes"})])
    assert await kit.deliveries(attempt.attempt_id) == settled


async def test_deliveries_of_an_attempt_that_died_are_settled_too(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.commit_generations([call(attempt, 1)])
    await opened(kit, execution="x2")
    assert await kit.deliveries(attempt.attempt_id) == {1: "yes"}


async def test_of_concurrent_finishes_one_decides(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    outcomes = await asyncio.gather(*(finish(postgres_kit, attempt, reward=float(number)) for number in range(8)))
    assert len({outcome.reward for outcome in outcomes}) == 1


async def test_finish_against_a_newer_open_ends_one_way(postgres_kit: PostgresKit) -> None:
    for number in range(10):
        rollout = f"race-{number}"
        await postgres_kit.add_rollout(rollout)
        attempt = await opened(postgres_kit, rollout)
        done, answer = await asyncio.gather(
            finish(postgres_kit, attempt), open_(postgres_kit, rollout, execution="x2"), return_exceptions=True
        )
        if isinstance(done, ConflictError):
            assert not isinstance(answer, BaseException)
            assert answer.state == "opened"
        else:
            assert not isinstance(answer, BaseException)
            assert (answer.state, answer.outcome) == ("finished", done)


async def test_further_named_rewards_and_the_feedback_are_kept_beside_the_one_that_counts(
    database: Database, postgres_kit: PostgresKit
) -> None:
    attempt = await opened(postgres_kit)
    named = {"exact": 0.5, "short": 0.25, "broken": float("nan")}
    first = await finish(postgres_kit, attempt, reward=0.5, rewards=named, feedback="too\0 long")
    again = await finish(postgres_kit, attempt, reward=1.0, rewards={"other": 1.0})
    assert first == again
    view = await RunViews(database).rollout("r1")
    found = [(row.grader, row.dimension, row.primary, row.value, row.feedback) for row in view.rewards]
    assert found == [("agent", "exact", True, 0.5, found[0][-1]), ("agent", "short", False, 0.25, None)]
    assert "long" in str(found[0][-1])
    lines = rollout_lines(view, [])
    assert any(line.startswith("  reward exact by agent: 0.500, primary: too") for line in lines)
    assert "  reward short by agent: 0.250" in lines


async def test_an_attempt_sees_the_metadata_and_the_resources_of_its_rollout(
    database: Database, postgres_kit: PostgresKit
) -> None:
    store = await PostgresLightningStore.create(database)
    added = await store.add_resources({"prompt": PromptTemplate(template="{x}")})
    rollout = await store.enqueue_rollout(
        "x", metadata={"source": "algebra"}, dispatch=Dispatch(by="workflow", agent="outside")
    )
    await store.aclose()
    attempt = await opened(postgres_kit, rollout.rollout_id)
    seen = Invocation(attempt.input, rollout=AgentCall.from_opened(attempt, "outside").rollout).rollout
    assert (seen.metadata, seen.resources_id, seen.resources_version) == ({"source": "algebra"}, added.resources_id, 1)


async def test_named_rewards_of_a_later_regrade_are_rows_beside_those_that_were_trained_on(
    database: Database, postgres_kit: PostgresKit
) -> None:
    attempt = await opened(postgres_kit)
    await finish(postgres_kit, attempt, reward=1.0)
    named = NamedRewards(dimensions={"exact": 0.5, "short": 0.25}, feedback="too long")
    given = RegradedRewards(
        run="demo", grader="judge", rewards=[("r1", attempt.attempt_id, 0.5)], named={attempt.attempt_id: named}
    )
    for _ in range(2):
        assert await regrades.record_regrades(database, given) == 1
    view = await RunViews(database).rollout("r1")
    assert [(row.grader, row.dimension, row.primary, row.value, row.feedback) for row in view.rewards] == [
        ("agent", "primary", True, 1.0, None),
        ("judge", "exact", True, 0.5, "too long"),
        ("judge", "short", False, 0.25, None),
    ]


async def test_named_rewards_of_an_external_runners_last_reward_span_are_kept(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    claim = await store.start_rollout("x")
    for number, rewards in enumerate(({"old": 9.0}, {"exact": 0.5, "short": 0.25}), 1):
        attributes = reward_attributes(rewards, "too long")
        await store.add_span(span_of(claim, f"s{number}", number, name=AGL_ANNOTATION, attributes=attributes))
    await store.update_attempt(claim.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    await store.aclose()
    view = await RunViews(database).rollout(claim.rollout_id)
    assert view.reward == 0.5
    assert [(row.dimension, row.primary, row.value, row.feedback) for row in view.rewards] == [
        ("exact", True, 0.5, "too long"),
        ("short", False, 0.25, None),
    ]


@pytest.mark.parametrize("fields", [{}, {"failure_class": "agent_error"}])
async def test_spans_that_were_not_kept_are_counted_at_their_attempt(kit: StoreKit, fields: dict[str, str]) -> None:
    attempt = await opened(kit)
    await finish(kit, attempt, spans_dropped=401, **fields)
    await finish(kit, attempt, spans_dropped=401, **fields)
    assert [row.spans_dropped for row in await kit.attempts("r1")] == [401]


async def test_spans_that_were_not_kept_are_counted_where_a_grader_ends_the_attempt(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.await_grading(grading_of(attempt, spans_dropped=3))
    await finish(kit, attempt, grader="judge")
    assert [row.spans_dropped for row in await kit.attempts("r1")] == [3]


async def test_the_count_of_an_attempt_that_lost_its_fence_is_its_own(kit: StoreKit) -> None:
    first = await opened(kit)
    await opened(kit, execution="x2")
    with pytest.raises(ConflictError):
        await finish(kit, first, spans_dropped=7)
    assert (await kit.attempts("r1"))[1].spans_dropped == 0
