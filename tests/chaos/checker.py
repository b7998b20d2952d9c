"""What the agents wrote down during the faults, compared afterwards with Postgres and with Temporal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from relight.types import names
from tests.chaos.stack import ChaosStack

ATTEMPTS = """
select a.attempt_id, a.rollout_id, a.status, a.failure_class, a.reward, r.final_attempt = a.attempt_id as counts,
       (select count(*) from generations g where g.attempt_id = a.attempt_id and g.choice = 0) as calls
from attempts a join rollouts r using (rollout_id)
"""
COUNTED = """
select rollout_id from rollouts join runs using (run)
where runs.status = 'finished' and rollouts.status = 'succeeded' and final_attempt is null
"""
BACKWARDS = {
    "spans": "select count(*) from spans where end_time < start_time",
    "attempts": "select count(*) from attempts where seconds < 0",
    "model calls": "select count(*) from generations where seconds < 0",
    "steps": "select count(*) from steps, jsonb_each_text(seconds) as s (phase, took) where took::float8 < 0",
}
"""Things that took less than no time, whatever clock jumped."""


@dataclass
class Said:
    """One attempt, as its own process knew it."""

    rollout: str
    asked: int = 0
    answered: int = 0
    reward: float | None = None
    lines: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


def read(folder: Path) -> dict[str, Said]:
    """The agents' ledger, by attempt. A last line that its process did not live to finish is left out."""
    found: dict[str, Said] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            entry = orjson.loads(line)
            said = found.setdefault(entry["attempt"], Said(entry["rollout"]))
            said.lines.append(entry)
            said.asked += entry["what"] == "ask"
            said.answered += entry["what"] == "answered"
            said.reward = entry.get("reward", said.reward)
    return found


async def contradictions(chaos: ChaosStack) -> list[str]:
    """Whatever the three do not agree on."""
    pool = chaos.database.pool
    said = read(chaos.said)
    rows = {row["attempt_id"]: row for row in await pool.fetch(ATTEMPTS)}
    found = [f"attempt {attempt} ran, and Postgres has no row of it" for attempt in said.keys() - rows.keys()]
    counted: dict[str, list[str]] = defaultdict(list)
    for attempt, row in rows.items():
        found += _of_attempt(attempt, row, said.get(attempt))
        if row["counts"]:
            counted[row["rollout_id"]].append(attempt)
    found += [f"rollout {rollout} counts {len(ids)} attempts" for rollout, ids in counted.items() if len(ids) > 1]
    found += [f"rollout {row['rollout_id']} succeeded, and none counts" for row in await pool.fetch(COUNTED)]
    for what, query in BACKWARDS.items():
        if wrong := await pool.fetchval(query):
            found.append(f"{wrong} {what} took less than no time")
    return found + await _of_temporal(chaos)


def _of_attempt(attempt: str, row: Mapping[str, Any], said: Said | None) -> list[str]:
    """Every answer that an agent has seen is on record, and no reward is there that no agent gave."""
    if said is None:
        return [f"attempt {attempt} succeeded without having run"] if row["status"] == "succeeded" else []
    found: list[str] = []
    if said.answered > row["calls"]:
        found.append(f"attempt {attempt} had {said.answered} answers, and Postgres knows {row['calls']} calls")
    if row["status"] == "succeeded" and row["reward"] != said.reward:
        found.append(f"attempt {attempt} gave reward {said.reward}, and Postgres has {row['reward']}")
    return found


async def _of_temporal(chaos: ChaosStack) -> list[str]:
    """Each finished rollout of a run that finished has a workflow that completed."""
    completed = {
        execution.id
        async for execution in chaos.client.list_workflows(
            f'WorkflowType="{names.ROLLOUT_WORKFLOW}" and ExecutionStatus="Completed"'
        )
    }
    rows = await chaos.database.pool.fetch(
        "select rollout_id from rollouts join runs using (run) where runs.status = 'finished' and rollouts.status"
        " in ('succeeded', 'failed') and rollouts.kind = 'train'"
    )
    ids = {names.rollout_workflow_id(row["rollout_id"]) for row in rows}
    return [f"no workflow {name} completed" for name in sorted(ids - completed)]
