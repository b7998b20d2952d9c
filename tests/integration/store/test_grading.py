"""Attempts that a grader finishes, the same in every store."""

from __future__ import annotations

from typing import Literal

import pytest

from relight.errors import ConflictError, NotFoundError
from relight.types.wire import DeliveryMark, GradingRequest, OpenedAttempt
from tests.support.store_kit import MemoryKit, PostgresKit, StoreKit, call, finish, grading_of, opened


def handed(attempt: OpenedAttempt, **left: object) -> GradingRequest:
    return grading_of(attempt, **({"output": "done", "output_bytes": 4, "duration_seconds": 1.5} | left))


async def set_grader(kit: StoreKit, grader: str) -> None:
    if isinstance(kit, MemoryKit):
        kit.memory.runs["demo"].grader = grader
    elif isinstance(kit, PostgresKit):
        await kit.database.pool.execute("update runs set file = file || jsonb_build_object('grader', $1::text)", grader)


async def test_an_opened_attempt_names_the_grader_of_its_run(kit: StoreKit) -> None:
    assert (await opened(kit)).grader is None
    await set_grader(kit, "judge")
    await kit.add_rollout("r2")
    assert (await opened(kit, "r2")).grader == "judge"
    await kit.add_rollout("r3", external=True)
    assert (await opened(kit, "r3")).grader is None


async def test_a_transcript_holds_the_task_the_output_and_the_answers_that_arrived_in_order(kit: StoreKit) -> None:
    await kit.load(0)
    attempt = await opened(kit)
    same = {"prompt_token_ids": [1, 2]}
    records = [
        call(attempt, 1, "a", **same),
        call(attempt, 2, "a", **same),
        call(attempt, 3, "b"),
        call(attempt, 4, "c"),
    ]
    results = await kit.store.commit_generations([records[2], records[0], records[3], records[1]])
    assert {result.state for result in results} == {"committed"}
    marks: list[tuple[int, Literal["yes", "no"]]] = [(3, "yes"), (4, "no")]
    await kit.store.mark_delivered(
        [
            DeliveryMark(rollout_id="r1", attempt_id=attempt.attempt_id, call_number=number, delivered=delivered)
            for number, delivered in marks
        ]
    )
    await kit.store.await_grading(handed(attempt))
    transcript = await kit.store.transcript(attempt.attempt_id)
    assert (transcript.input, transcript.output, transcript.outcome) == ({"question": "2*3"}, "done", None)
    assert [(one.request, one.response) for one in transcript.calls] == [
        (record.request, record.response) for record in (records[1], records[2])
    ]  # the first answer was asked for again, the last one did not arrive


async def test_an_attempt_that_awaits_its_grader_is_open_until_its_grader_finishes_it(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.await_grading(handed(attempt))
    await kit.store.await_grading(handed(attempt))
    assert [(row.status, row.ended) for row in await kit.attempts("r1")] == [("running", False)]
    assert (await kit.rollout("r1")).status == "running"
    first = await finish(kit, attempt, reward=0.25, grader="judge")
    assert await finish(kit, attempt, reward=0.75, grader="judge") == first
    assert ((await kit.rollout("r1")).status, first.reward) == ("succeeded", 0.25)
    transcript = await kit.store.transcript(attempt.attempt_id)
    assert (transcript.output, transcript.outcome) == ("done", first)
    await kit.store.await_grading(handed(attempt, output="too late"))
    assert (await kit.store.transcript(attempt.attempt_id)).output == "done"


async def test_only_the_newest_attempt_can_await_its_grader(kit: StoreKit) -> None:
    attempt = await opened(kit)
    with pytest.raises(ConflictError):
        await kit.store.await_grading(handed(attempt.model_copy(update={"fence": attempt.fence + 1})))
    await opened(kit, execution="x2")
    with pytest.raises(ConflictError):
        await kit.store.await_grading(handed(attempt))


async def test_what_does_not_exist_has_no_transcript(kit: StoreKit) -> None:
    with pytest.raises(NotFoundError):
        await kit.store.transcript("at-404")
    with pytest.raises(NotFoundError):
        await kit.store.await_grading(GradingRequest(attempt_id="at-404", fence=1))


async def test_a_graded_attempt_has_one_reward_which_names_its_grader(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    await postgres_kit.store.await_grading(handed(attempt))
    await finish(postgres_kit, attempt, reward=0.25, grader="judge")
    rows = await postgres_kit.database.pool.fetch("select attempt_id, grader, value from rewards")
    assert [tuple(row) for row in rows] == [(attempt.attempt_id, "judge", 0.25)]
    kept = await postgres_kit.database.pool.fetchrow("select output, output_bytes, seconds from attempts")
    assert tuple(kept) == ("done", 4, 1.5)
