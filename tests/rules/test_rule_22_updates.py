"""Rule 22: updates answer after their audit row; invalid commands change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from relight.store.database import Database
from tests.integration.operators.kit import Gate, at, audit
from tests.support.orchestration import cluster, eventually, run_file, write_tasks

FILE = run_file(steps=1, data="train.jsonl")
UNSTORABLE: list[tuple[str, Any]] = [
    ("pause", {"reason": "because\x00"}),
    ("retry_rollout", {"rollout_id": "\x00"}),
    ("cancel_rollout", {"rollout_id": "r\x00", "reason": "x"}),
    ("stop_after_step", {"step": 10**12}),
    ("set_concurrency", {"concurrency": 10**12}),
    ("update_resources", {"resources": {"prompt": "a\x00b"}}),
    ("update_resources", {"resources": {"number": 10**30}}),
    ("set_hyperparameters", {"max_tokens": 10**30}),
    ("set_hyperparameters", {"batch_size": 10**9}),
    ("set_hyperparameters", {"entropy_coeff": float("inf")}),
]
"""Values that JSON can say and Postgres, or a plan, can not hold."""


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_a_command_whose_values_cannot_be_stored_is_refused_and_the_run_continues(
    temporal: Client, database: Database, tmp_path: Path, way: str
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("sober", FILE)
        await gate.until(lambda: bool(gate.held))
        for action, value in UNSTORABLE:
            if way == "signal":
                await handle.signal(action, value)
            else:
                with pytest.raises(WorkflowUpdateFailedError):
                    await handle.execute_update(action, value)

        async def all_refused() -> bool:
            rows = await audit(database, "sober")
            return way == "update" or len([row for row in rows if row["refused"]]) == len(UNSTORABLE)

        await eventually(all_refused, 60)
        gate.open.set()
        await handle.result()
    assert [row for row in await audit(database, "sober") if not row["refused"]] == []
    assert dict(stack.gpu.updates) == {1: 1}


async def test_a_rollout_is_cancelled_whatever_text_its_signal_holds(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    target = "told-s0001-g00-i0"
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("told", FILE)
        await gate.until(lambda: bool(gate.held))
        odd = {"reason": "it\x00loops", "actor": "a\x00da"}
        await temporal.get_workflow_handle(f"rollout/{target}").signal("cancel", odd)
        await handle.result()
    row = await database.pool.fetchrow("select status, failure from rollouts where rollout_id = $1", target)
    assert tuple(row) == ("cancelled", "it\N{REPLACEMENT CHARACTER}loops")
    assert [entry["actor"] for entry in await audit(database, "told")] == ["a\N{REPLACEMENT CHARACTER}da"]
