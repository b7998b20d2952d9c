"""A live run's numbers are held to what its file is held to."""

from __future__ import annotations

from pathlib import Path

from relight.store.database import Database
from tests.rules.kit import begin


async def test_a_hyperparameter_that_the_runs_loss_does_not_read_is_refused_and_another_is_accepted(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "numbers", algorithm={"loss_mode": "gpg"})
    refused = await run.change("set_hyperparameters", {"clip_ratio": 0.3})
    assert not refused.accepted
    assert "algorithm.clip_ratio: 0.3 would do nothing to the policy loss `gpg`" in refused.reason
    assert (await run.change("set_hyperparameters", {"learning_rate": 0.5, "temperature": 0.7})).accepted
    await run.plan(1)
    plan = (await database.row("get_step", run.name, 1) or {})["plan"]
    assert (plan["learning_rate"], plan["sampling"]["temperature"]) == (0.5, 0.7)
