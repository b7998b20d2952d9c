"""Rule 4: a rollout whose process died twice runs alone from then on; after five deaths it is quarantined and shown."""

from __future__ import annotations

from pathlib import Path

from relight.store.database import Database
from relight.store.runs.views import RunViews
from tests.rules.kit import begin


async def test_a_rollout_that_kills_its_process_is_isolated_and_quarantined_after_five_deaths(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "poison", isolation="shared")
    await run.plan(1)
    rollout, neighbour, *_ = [row["rollout_id"] for row in await run.rollouts(1)]
    alone = [(await run.opened(rollout)).alone for _ in range(5)]  # each opening ends the one before
    assert alone == [False, False, True, True, True]
    assert (await run.open(rollout)).state == "finished"
    row = (await run.rollouts(1))[0]
    assert (row["status"], row["failure_class"], row["deaths"]) == ("failed", "infrastructure", 5)
    assert row["failure"].startswith("quarantined")
    assert not (await run.opened(neighbour)).alone
    shown = await RunViews(database).rollout(rollout)
    assert "quarantined" in shown.model_dump_json()
