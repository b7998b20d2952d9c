"""Rule 11: groups that the platform shortened are filled up, at most twice; then 2 real rewards are enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.store.database import Database
from relight.types.rollout import FailureClass
from tests.rules.kit import begin

PLATFORM = {FailureClass.INFRASTRUCTURE, FailureClass.ENGINE_ERROR, FailureClass.GRADER_ERROR}


@pytest.mark.parametrize("failure", sorted({*FailureClass} - {FailureClass.CANCELLED}))
async def test_a_group_is_filled_up_for_what_the_platform_failed_and_for_nothing_else(
    database: Database, tmp_path: Path, failure: FailureClass
) -> None:
    run = await begin(database, tmp_path, "short")
    await run.plan(1)
    first, *rest = await run.rollouts(1)
    if failure is FailureClass.INFRASTRUCTURE:  # which is tried again until its rollout is closed so
        await database.pool.execute(
            "update rollouts set status = 'failed', failure_class = 'infrastructure', ended_at = now()"
            " where rollout_id = $1",
            first["rollout_id"],
        )
    else:
        await run.play(first["rollout_id"], failure=failure)
    for row in rest:
        await run.play(row["rollout_id"])
    advance = await run.advance(1)
    if failure in PLATFORM:
        assert advance.rollouts == [(0, 4, 1)]  # the next free index of that group
    else:
        assert advance.report is not None
        assert advance.report.failures == {failure.value: 1}


async def test_after_two_fill_ups_a_group_with_two_rewards_trains_and_one_with_one_is_dropped_and_counted(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "rounds", failures={"pause_above": None})
    await run.plan(1)
    good = {(0, 0), (0, 1), (1, 0)}
    played: list[int] = []
    while not (advance := await run.advance(1)).report:
        played.append(len(advance.rollouts))
        for row in await run.rollouts(1):
            if row["ended_at"] is None:
                right = (row["group_number"], row["index_in_group"]) in good
                await run.play(row["rollout_id"], failure=None if right else FailureClass.ENGINE_ERROR)
    assert played == [8, 5, 5]
    await run.update(1)
    trained = await database.pool.fetch("select group_number, count(*) as n from step_rollouts group by 1")
    assert [tuple(row) for row in trained] == [(0, 2)]
    assert advance.report.failures == {"engine_error": 15}
