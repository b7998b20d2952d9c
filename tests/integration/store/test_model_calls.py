"""Model calls: resolving, committing, delivering (rule 2, 7, 8), the same in every store."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from relight.errors import ConflictError, UnauthorizedError
from relight.store.database import Database
from relight.types.wire import Choice, DeliveryMark, EndedAttempts, OpenedAttempt, RecallRequest, ResolveRequest
from tests.rules.kit import begin
from tests.support.store_kit import PostgresKit, StoreKit, call, finish, opened, span


def resolving(attempt: OpenedAttempt, **fields: str) -> ResolveRequest:
    values = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id, "token": attempt.token}
    return ResolveRequest(**(values | fields))


async def states(kit: StoreKit, *calls: object) -> list[str]:
    return [result.state for result in await kit.store.commit_generations(list(calls))]  # type: ignore[arg-type]


async def test_a_token_resolves_to_how_its_calls_are_served(kit: StoreKit) -> None:
    attempt = await opened(kit)
    context = await kit.store.resolve(resolving(attempt))
    assert (context.run, context.model) == ("demo", "policy")
    assert context.seed_base == "7/1/0/0/1"
    assert context.sampling == {"temperature": 1.0, "top_k": -1}
    assert (context.agent_chooses_sampling, context.engine_wait_seconds) == (False, 120)
    assert (context.min_version, context.max_version) == (0, 0)
    assert (context.next_call_number, context.undelivered) == (1, [])


@pytest.mark.parametrize(
    "file",
    [
        {"algorithm": {"rollout_correction": {"rollout_is": "token"}}},
        {"verl": {"algorithm": {"rollout_correction": {"rollout_is": "token"}}}},
        {"verl": {"algorithm.rollout_correction.bypass_mode": True}},
        {},
    ],
)
async def test_the_gateway_gets_the_correction_under_either_name(
    database: Database, tmp_path: Path, file: dict[str, Any]
) -> None:
    run = await begin(database, tmp_path, "corrected", **file)
    await run.plan(1)
    attempt = await run.opened((await run.rollouts(1))[0]["rollout_id"])
    assert (await run.store.resolve(resolving(attempt))).corrected == bool(file)


async def test_the_seed_follows_the_try(kit: StoreKit) -> None:
    await kit.add_rollout("r2", max_attempts=2, retry_condition=["agent_error"])
    await finish(kit, await opened(kit, "r2"), failure_class="agent_error")
    second = await opened(kit, "r2", try_number=2)
    assert (await kit.store.resolve(resolving(second))).seed_base == "7/1/1/0/2"


@pytest.mark.parametrize("fields", [{"token": "rl-wrong"}, {"attempt_id": "at-404"}, {"rollout_id": "r2"}])
async def test_a_token_of_another_attempt_is_refused(kit: StoreKit, fields: dict[str, str]) -> None:
    attempt = await opened(kit)
    with pytest.raises(UnauthorizedError):
        await kit.store.resolve(resolving(attempt, **fields))


async def test_a_dead_attempts_token_is_a_conflict(kit: StoreKit) -> None:
    async def ended() -> list[str]:
        asked = [old.attempt_id, new.attempt_id, "at-404"]
        return (await kit.store.ended_attempts(EndedAttempts(attempt_ids=asked))).attempt_ids

    old = await opened(kit)
    new = await opened(kit, execution="x2")
    with pytest.raises(ConflictError):
        await kit.store.resolve(resolving(old))
    assert await ended() == [old.attempt_id, "at-404"]
    await finish(kit, new)
    with pytest.raises(ConflictError):
        await kit.store.resolve(resolving(new))
    assert await ended() == [old.attempt_id, new.attempt_id, "at-404"]


async def test_a_call_is_read_back_by_its_attempt_alone(kit: StoreKit) -> None:
    attempt = await opened(kit)
    sent = call(attempt, 1)
    await kit.store.commit_generations([sent])
    await kit.store.mark_delivered(
        [DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=1, delivered="yes")]
    )
    asked = RecallRequest(**resolving(attempt).model_dump(), call_number=1)
    found = (await kit.store.recall(asked)).call
    assert found is not None
    assert (found.call_number, found.request_hash, found.response) == (1, sent.request_hash, sent.response)
    assert (await kit.store.recall(asked.model_copy(update={"call_number": 2}))).call is None
    with pytest.raises(UnauthorizedError):
        await kit.store.recall(asked.model_copy(update={"token": "rl-wrong"}))


async def test_calls_of_a_cancelled_rollout_are_refused(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.cancel("r1")
    with pytest.raises(ConflictError):
        await kit.store.resolve(resolving(attempt))
    assert await states(kit, call(attempt)) == ["conflict"]


async def test_a_commit_sets_rollout_and_attempt_running(kit: StoreKit) -> None:
    attempt = await opened(kit)
    assert await states(kit, call(attempt)) == ["committed"]
    assert (await kit.rollout("r1")).status == "running"
    assert [row.status for row in await kit.attempts("r1")] == ["running"]


async def test_the_same_call_twice_is_one_row(kit: StoreKit) -> None:
    attempt = await opened(kit)
    assert await states(kit, call(attempt), call(attempt)) == ["committed", "committed"]
    assert await states(kit, call(attempt)) == ["committed"]
    assert await kit.deliveries(attempt.attempt_id) == {1: "unknown"}


async def test_a_call_sent_again_after_the_attempt_ended_was_committed(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await states(kit, call(attempt))
    await finish(kit, attempt)
    assert await states(kit, call(attempt), call(attempt, 2)) == ["committed", "conflict"]


async def test_a_call_number_that_another_request_has_is_numbered_again(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await states(kit, call(attempt, 1), call(attempt, 2, "hash-2"))
    (result,) = await kit.store.commit_generations([call(attempt, 1, "hash-3")])
    assert (result.state, result.next_call_number) == ("renumber", 3)
    assert await states(kit, call(attempt, 3, "hash-3")) == ["committed"]


async def test_calls_in_one_request_are_numbered_against_each_other(kit: StoreKit) -> None:
    attempt = await opened(kit)
    first, second = await kit.store.commit_generations([call(attempt, 1, "a"), call(attempt, 1, "b")])
    assert (first.state, second.state, second.next_call_number) == ("committed", "renumber", 2)


async def test_a_commit_with_a_stale_or_foreign_token_is_a_conflict_and_the_others_succeed(kit: StoreKit) -> None:
    await kit.add_rollout("r2")
    old, other = await opened(kit), await opened(kit, "r2")
    new = await opened(kit, execution="x2")
    calls = [
        call(old),
        call(new),
        call(other, token_hash="wrong"),
        call(other, 2, rollout_id="r1"),
        call(other, 3, attempt_id="at-404"),
    ]
    assert await states(kit, *calls) == ["conflict", "committed", "conflict", "conflict", "conflict"]
    assert await kit.deliveries(old.attempt_id) == {}


@pytest.mark.parametrize(
    "poison",
    [
        {"choices": []},
        {"call_number": 2**40},
        {"seed": 2**70},
        {"prompt_token_ids": [2**40]},
    ],
)
async def test_an_invalid_call_does_not_fail_the_others(postgres_kit: PostgresKit, poison: dict[str, Any]) -> None:
    attempt = await opened(postgres_kit)
    values: dict[str, Any] = poison if "call_number" in poison else {"number": 2, **poison}
    bad = call(attempt, **values)
    assert await states(postgres_kit, call(attempt, 1), bad, call(attempt, 3, "hash-3")) == [
        "committed",
        "conflict",
        "committed",
    ]


async def test_what_was_sampled_is_stored_exactly(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    choices = [
        Choice(index=0, response_token_ids=[3, 4], logprobs=[-0.5, -math.inf], finish_reason="stop"),
        Choice(index=1, response_token_ids=None, logprobs=None, finish_reason=None, complete=False),
    ]
    record = call(attempt, choices=choices, request={"text": "a\x00b", "n": 10**30}, response={"nan": 1.5})
    assert await states(postgres_kit, record) == ["committed"]
    rows = await postgres_kit.database.pool.fetch("select * from generations order by choice")
    assert [row["token_ids"] for row in rows] == [[3, 4], None]
    assert [row["logprobs"] for row in rows] == [[-0.5, -math.inf], None]
    assert [row["complete"] for row in rows] == [True, False]
    assert rows[0]["prompt_token_ids"] == [1, 2, 1]


async def numbers_of(kit: PostgresKit) -> list[tuple[int, str]]:
    """The sequence of a rollout: numbers, and what has them."""
    rows = await kit.database.pool.fetch(
        "select sequence_id, span_id as name from spans where rollout_id = 'r1'"
        " union all select sequence_id, response_id from generations where rollout_id = 'r1' order by 1, 2"
    )
    return [(row["sequence_id"], row["name"]) for row in rows]


async def test_calls_stand_in_one_sequence_with_the_spans_of_their_rollout(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    two = [Choice(index=index, response_token_ids=[3], logprobs=[-0.5], finish_reason="stop") for index in (0, 1)]
    await states(postgres_kit, call(attempt, 1))
    await postgres_kit.store.add_spans("r1", attempt.attempt_id, attempt.fence, [span("between")])
    await states(postgres_kit, call(attempt, 2, "hash-2"), call(attempt, 3, "hash-3", choices=two))
    await states(postgres_kit, call(attempt, 2, "hash-2"))  # sent twice
    await postgres_kit.store.add_spans("r1", attempt.attempt_id, attempt.fence, [span("last")])
    assert await numbers_of(postgres_kit) == [
        (1, "chatcmpl-1"),
        (2, "between"),
        (3, "chatcmpl-2"),
        (4, "chatcmpl-3"),
        (5, "chatcmpl-3"),
        (6, "last"),
    ]


@pytest.mark.parametrize("response", [{"id": 7}, {"id": "x" * 10_000}, {}])
async def test_an_answer_without_a_usable_id_is_kept_without_one(
    postgres_kit: PostgresKit, response: dict[str, Any]
) -> None:
    assert await states(postgres_kit, call(await opened(postgres_kit), response=response)) == ["committed"]
    assert await numbers_of(postgres_kit) == [(1, None)]


async def test_calls_and_spans_of_many_rollouts_at_once_wait_for_each_other_and_share_no_number(
    postgres_kit: PostgresKit,
) -> None:
    await postgres_kit.add_rollout("r2")
    attempts = [await opened(postgres_kit, rollout) for rollout in ("r1", "r2")]

    async def commit(number: int) -> None:
        order = attempts if number % 2 else attempts[::-1]
        await states(postgres_kit, *(call(attempt, number, f"hash-{number}") for attempt in order))

    async def trace(number: int) -> None:
        for attempt in attempts if number % 2 else attempts[::-1]:
            spans = [span(f"s{number}")]
            await postgres_kit.store.add_spans(attempt.rollout_id, attempt.attempt_id, attempt.fence, spans)

    await asyncio.gather(*(work(number) for number in range(1, 17) for work in (commit, trace)))
    assert [number for number, _ in await numbers_of(postgres_kit)] == list(range(1, 33))


async def test_bodies_are_stored_once_a_day(postgres_kit: PostgresKit) -> None:
    await postgres_kit.add_rollout("r2")
    for rollout in ("r1", "r2"):
        attempt = await opened(postgres_kit, rollout)
        await states(postgres_kit, *(call(attempt, number, "same", response={"id": number}) for number in (1, 2)))
    assert await postgres_kit.database.pool.fetchval("select count(*) from bodies") == 3


async def test_the_gateway_gets_the_answers_that_may_not_have_arrived(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await states(kit, *(call(attempt, number, f"hash-{number}") for number in (1, 2, 3)))
    mark = DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=1, delivered="yes")
    await kit.store.mark_delivered([mark, mark.model_copy(update={"call_number": 2, "delivered": "no"})])
    context = await kit.store.resolve(resolving(attempt))
    assert context.next_call_number == 4
    assert [(entry.call_number, entry.request_hash, entry.delivered) for entry in context.undelivered] == [
        (2, "hash-2", "no"),
        (3, "hash-3", "unknown"),
    ]
    assert context.undelivered[0].response == call(attempt, 2).response


async def test_delivered_stays_delivered(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await states(kit, call(attempt, 1), call(attempt, 2, "hash-2", delivered="yes"))
    for delivered in ("no", "yes", "no"):
        marks = [
            DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=number, delivered=delivered)
            for number in (1, 2, 9)
        ]
        await kit.store.mark_delivered(marks)
    assert await kit.deliveries(attempt.attempt_id) == {1: "yes", 2: "yes"}


async def test_contradicting_marks_in_one_request_mean_yes(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await states(kit, call(attempt))
    mark = DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=1, delivered="yes")
    await kit.store.mark_delivered([mark, mark.model_copy(update={"delivered": "no"})])
    assert await kit.deliveries(attempt.attempt_id) == {1: "yes"}


async def test_a_no_can_be_taken_back_and_a_yes_cannot(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await states(kit, call(attempt, 1), call(attempt, 2, "hash-2"))
    mark = DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=1, delivered="no")
    await kit.store.mark_delivered([mark, mark.model_copy(update={"call_number": 2, "delivered": "yes"})])
    mark = mark.model_copy(update={"delivered": "unknown"})
    await kit.store.mark_delivered([mark, mark.model_copy(update={"call_number": 2})])
    assert await kit.deliveries(attempt.attempt_id) == {1: "unknown", 2: "yes"}
    await finish(kit, attempt)
    assert await kit.deliveries(attempt.attempt_id) == {1: "yes", 2: "yes"}


async def test_policy_versions_are_those_that_the_engine_held(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.load(0)
    loaded = asyncio.get_running_loop().time()
    await states(kit, call(attempt, 1, "a"))
    await asyncio.sleep(0.5)  # between the two loads
    await kit.load(1)
    since = asyncio.get_running_loop().time() - loaded
    calls = [
        call(attempt, 2, "b", duration_seconds=0.0),
        call(attempt, 3, "c", duration_seconds=since - 0.02),
        call(attempt, 4, "d", duration_seconds=3600.0),
        call(attempt, 5, "e", engine_id="upstream"),
    ]
    await states(kit, *calls)
    assert await kit.versions(attempt.attempt_id) == {
        1: (0, 0),
        2: (1, 1),
        3: (0, 1),
        4: (None, 1),
        5: (None, None),
    }


async def test_only_engines_that_are_ready_take_calls(kit: StoreKit) -> None:
    await kit.load(0, engine_id="engine-b")
    await kit.load(2, engine_id="engine-a")
    await kit.load(0, engine_id="engine-c", state="loading")
    engines = await kit.store.engines("demo")
    assert [(engine.engine_id, engine.version) for engine in engines] == [("engine-a", 2), ("engine-b", 0)]
    assert await kit.store.engines("other") == []


async def test_concurrent_commits_of_one_attempt_are_all_recorded_once(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    commits = [states(postgres_kit, call(attempt, number % 8 + 1, f"hash-{number % 8}")) for number in range(32)]
    assert await asyncio.gather(*commits) == [["committed"]] * 32
    assert len(await postgres_kit.deliveries(attempt.attempt_id)) == 8


async def test_commits_against_finishes_lose_nothing_that_was_answered(postgres_kit: PostgresKit) -> None:
    for number in range(10):
        rollout = f"race-{number}"
        await postgres_kit.add_rollout(rollout)
        attempt = await opened(postgres_kit, rollout)
        await states(postgres_kit, call(attempt, 1))
        (answer,), outcome = await asyncio.gather(
            states(postgres_kit, call(attempt, 2, "hash-2")), finish(postgres_kit, attempt)
        )
        assert outcome.succeeded
        deliveries = await postgres_kit.deliveries(attempt.attempt_id)
        assert (2 in deliveries) == (answer == "committed")
        assert "unknown" not in deliveries.values()


async def read_by_openness(kit: PostgresKit) -> int:
    """How many entries of the indexes of what is open were read so far."""
    async with kit.database.pool.acquire() as connection:
        await connection.execute("select pg_stat_force_next_flush()")
        query = "select sum(idx_tup_read) from pg_stat_user_indexes where indexrelname = any ($1)"
        return await connection.fetchval(query, ["rollouts_open", "attempts_one_open"])


async def test_a_heartbeat_reads_no_other_rollout_however_many_are_open(postgres_kit: PostgresKit) -> None:
    for number in range(50):
        await postgres_kit.add_rollout(f"open-{number}")
        await opened(postgres_kit, f"open-{number}")
    attempt = await opened(postgres_kit)
    before = await read_by_openness(postgres_kit)
    for number in (1, 2):
        assert await states(postgres_kit, call(attempt, number, f"hash-{number}")) == ["committed"]
        mark = DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=number, delivered="yes")
        await postgres_kit.store.mark_delivered([mark])
        await postgres_kit.store.heartbeat(attempt.attempt_id, attempt.fence, "worker")
        await postgres_kit.store.add_spans(attempt.rollout_id, attempt.attempt_id, attempt.fence, [span(f"s{number}")])
    await finish(postgres_kit, attempt)
    assert await read_by_openness(postgres_kit) <= before + 2  # its own


async def test_calls_are_found_by_the_id_of_their_answer_in_an_index(postgres_kit: PostgresKit) -> None:
    await states(postgres_kit, call(await opened(postgres_kit)))
    async with postgres_kit.database.transaction() as tx:
        await tx.connection.execute("set local enable_seqscan = off")
        plan = await tx.connection.fetch("explain select * from generations where response_id = 'chatcmpl-1'")
    assert any("response_id" in line["QUERY PLAN"] and "Index" in line["QUERY PLAN"] for line in plan)
