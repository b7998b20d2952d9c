"""Rule 13: ledger, training, files, version, engines, step row: a death between any two of them loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relight.faults import FaultPoint
from relight.gpu_worker import policy_update
from relight.store.database import Database
from tests.rules.host import gpu_host
from tests.rules.kit import begin


class Died(BaseException):
    """What a SIGKILL looks like from inside."""


async def test_what_an_update_measured_is_kept_where_its_worker_dies_before_the_step_is_recorded(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await begin(database, tmp_path, "measured")
    dying: list[Any] = [FaultPoint.VERSION_RECORDED]

    def reach(step_input: Any) -> None:
        if step_input in dying:
            dying.remove(step_input)
            raise Died

    monkeypatch.setattr(policy_update, "fault_point", reach)
    async with gpu_host(database, tmp_path, run) as host:
        await run.plan(1)
        await run.play_all(1)
        assert (await run.advance(1)).report
        with pytest.raises(Died):
            await host.update(run.step_input(1))
        result = await host.update(run.step_input(1))
    row = await database.pool.fetchrow("select status, metrics from steps where run = 'measured' and step = 1")
    assert (row["status"], result.version) == ("recorded", 1)
    assert {"loss", "rollouts", "reward_mean"} <= row["metrics"].keys()
    shown = await database.pool.fetch("select name from metrics where run = 'measured' and step = 1")
    assert "train/loss" in {line["name"] for line in shown}
