"""Rule 12: closing a batch writes which attempt counts, under the lock by which a retry is decided."""

from __future__ import annotations

import asyncio
from pathlib import Path

from relight.store.database import Database
from relight.types.rollout import FailureClass
from tests.rules.kit import begin


async def test_of_a_concurrent_retry_and_closing_one_succeeds_and_the_other_gets_its_refusal(
    database: Database, tmp_path: Path
) -> None:
    for number in range(8):
        run = await begin(database, tmp_path, f"race-{number}")
        await run.plan(1)
        first, *rest = await run.rollouts(1)
        await run.play(first["rollout_id"], failure=FailureClass.AGENT_ERROR)
        for row in rest:
            await run.play(row["rollout_id"])
        retry, advance = await asyncio.gather(
            run.change("retry_rollout", {"rollout_id": first["rollout_id"]}), run.advance(1)
        )
        row = (await run.rollouts(1))[0]
        assert retry.accepted
        requeued = retry.after == "requeuing"
        assert requeued != bool(advance.report), number
        assert (row["status"], row["final_attempt"] is None) == (("requeuing", True) if requeued else ("failed", False))
        if requeued:
            assert advance.rollouts == [(0, 0, 2)]
        else:  # a look at what happened, which changes nothing
            assert retry.after["inspection"] == f"{row['rollout_id']}.inspect-1"


async def test_the_attempt_that_counts_is_the_one_that_succeeded_and_the_ledger_keeps_its_grader(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "counts")
    await run.plan(1)
    first, *rest = await run.rollouts(1)
    lost = await run.opened(first["rollout_id"])
    won = await run.opened(first["rollout_id"])
    await run.end(won, 0.5)
    for row in rest:
        await run.play(row["rollout_id"])
    await run.advance(1)
    await database.pool.execute(
        "insert into rewards (rollout_id, attempt_id, grader, value) values ($1, $2, 'another', 9)",
        first["rollout_id"],
        won.attempt_id,
    )
    await run.update(1)
    row = await database.pool.fetchrow("select * from step_rollouts where rollout_id = $1", first["rollout_id"])
    assert (row["attempt_id"], row["reward"], row["grader"]) == (won.attempt_id, 0.5, "agent")
    assert lost.attempt_id != won.attempt_id
