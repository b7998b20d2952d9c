"""What goes wrong under faults can be looked into afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.evidence import kept_on_failure
from tests.chaos.report import Report, table
from tests.chaos.stack import chaos_stack, open_folder


async def test_a_failure_names_a_folder_with_logs_histories_and_a_dump(tmp_path: Path) -> None:
    with open_folder() as folder:
        async with chaos_stack(folder) as chaos:
            await (await chaos.start("doomed", 1)).result()
            with pytest.raises(RuntimeError) as failed:
                async with kept_on_failure(chaos, "by-hand", folder=tmp_path):
                    raise RuntimeError("as if")
    kept = tmp_path / "by-hand-1"
    assert str(kept) in failed.value.__notes__[0]
    assert {"store.log", "runner.log", "temporal.log", "postgres.log"} <= {
        log.name for log in (kept / "logs").iterdir()
    }
    assert list((kept / "histories").glob("train_doomed-*.json"))
    assert "doomed" in (kept / "postgres.sql").read_text()
    assert list((kept / "said").iterdir())


def test_a_report_shows_its_figures_beside_those_without_faults() -> None:
    calm, faulty = Report(1, "no faults", runs_started=1, runs_completed=1), Report(1, runs_started=2, runs_completed=1)
    faulty.faults["kill runner"] = 2
    faulty.repeated_by_fault["kill runner"] = 3
    for seconds in (1.0, 3.0):
        faulty.recovered("kill runner", seconds, seconds - 0.5)
    assert calm.good
    assert not faulty.good
    lines = table([calm, faulty]).splitlines()
    assert lines[1].split()[-6:] == ["1", "of", "1", "1", "of", "2"]
    assert ["kill", "runner", "2", "3", "2.0", "3.0", "0.5"] in [line.split() for line in lines]
    as_json = json.loads(json.dumps(faulty.as_json()))
    assert as_json["faults"] == {"kill runner": 2}
    assert as_json["by_process"]["runner"] == {"times": 2, "median": 2.0, "worst": 3.0}
