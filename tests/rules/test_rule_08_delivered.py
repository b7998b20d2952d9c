"""Rule 8: a call whose delivery is unknown when its attempt ends counts, unless a later call repeats its prompt."""

from __future__ import annotations

from pathlib import Path

from relight.store.database import Database
from relight.store.training import ledger
from relight.types.wire import DeliveryMark
from tests.rules.kit import begin
from tests.support.store_kit import call


async def test_unknown_deliveries_are_decided_at_the_end_and_only_delivered_answers_train(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "settled")
    await run.plan(1)
    rollout = (await run.rollouts(1))[0]["rollout_id"]
    attempt = await run.opened(rollout)
    await run.store.commit_generations(
        [
            call(attempt, 1, "first", prompt_token_ids=[1, 2], delivered="unknown"),  # asked again by the next one
            call(attempt, 2, "first", prompt_token_ids=[1, 2], delivered="unknown"),
            call(attempt, 3, "second", prompt_token_ids=[1, 2, 3], delivered="unknown"),
            call(attempt, 4, "third", prompt_token_ids=[9], delivered="unknown"),
        ]
    )
    gone = DeliveryMark(rollout_id=rollout, attempt_id=attempt.attempt_id, call_number=4, delivered="no")
    await run.store.mark_delivered([gone])
    await run.end(attempt, 1.0)
    rows = await database.pool.fetch("select call_number, delivered from generations order by call_number")
    assert [tuple(row) for row in rows] == [(1, "no"), (2, "yes"), (3, "yes"), (4, "no")]
    read = await ledger.read_generations(database, run.name, 1, [attempt.attempt_id])
    assert [generation.call_number for generation in read[attempt.attempt_id]] == [2, 3]
