"""The stack of the chaos runs, the runs on it, and what they left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
from temporalio.client import Client, WorkflowHandle

from relight import faults
from relight.connections import connect_database, connect_temporal
from relight.store.database import Database
from relight.types import names
from relight.worker.stack import EmbeddedStack
from tests.chaos.network import Network
from tests.chaos.parts import weights

AGENTS = Path(__file__).parent / "parts" / "agents.py"
TASKS = 10
TRAINED = """
select s.step, replace(s.rollout_id, s.run, '') as rollout, s.reward, s.advantage, r.position
from step_rollouts s join rollouts r using (rollout_id) where s.run = $1 order by s.step, s.rollout_id
"""
AGAIN = """
select rollout_id from attempts a join rollouts r using (rollout_id)
where r.run = $1 and a.status = 'succeeded' group by rollout_id having count(*) > 1
"""


@dataclass(frozen=True)
class Outcome:
    """What a run comes down to, without its name."""

    status: str
    steps: list[int]
    """Recorded ones, in order."""
    weights: list[str]
    """Hash of each policy version."""
    trained: list[tuple[Any, ...]]
    """Step, rollout, reward, advantage and task of everything in the ledger."""
    ran_again: list[str]
    """Rollouts that ended well more than once."""


@dataclass
class ChaosStack:
    """A booted stack with the fast parts."""

    stack: EmbeddedStack
    database: Database
    client: Client
    faults: Path
    network: Network | None = None
    """The proxies between its processes, where there are any."""

    async def start(self, run: str, steps: int, **changes: Any) -> WorkflowHandle[Any, Any]:
        """Start a run. Runs of the same number of steps are the same run under other names."""
        file = {
            "agent": "two_turns",
            "model": "policy",
            "data": {"train": "train.jsonl"},
            "group_size": 4,
            "batch_size": 2,
            "steps": steps,
            "seed": 7,
            **changes,
        }
        return await self.client.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id(run), task_queue=names.ORCHESTRATOR_QUEUE
        )

    async def recorded(self, run: str) -> int:
        """How many steps are on record."""
        query = "select count(*) from steps where run = $1 and step > 0 and status = 'recorded'"
        return int(await self.database.pool.fetchval(query, run))

    async def outcome(self, run: str) -> Outcome:
        """What the run left behind."""
        pool = self.database.pool
        steps = await pool.fetch(
            "select step from steps where run = $1 and step > 0 and status = 'recorded' order by step", run
        )
        versions = await pool.fetch("select weights_hash from policy_versions where run = $1 order by version", run)
        return Outcome(
            status=await pool.fetchval("select status from runs where run = $1", run),
            steps=[row["step"] for row in steps],
            weights=[row["weights_hash"] for row in versions],
            trained=[tuple(row) for row in await pool.fetch(TRAINED, run)],
            ran_again=[row["rollout_id"] for row in await pool.fetch(AGAIN, run)],
        )


@contextmanager
def open_folder() -> Generator[Path]:
    """A folder that another user may enter, as Postgres must where this runs as root."""
    with tempfile.TemporaryDirectory(prefix="relight-chaos-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@asynccontextmanager
async def chaos_stack(folder: Path, network: Network | None = None, **options: Any) -> AsyncGenerator[ChaosStack]:
    """Boot it; its processes reach each other through `network`, where one is given."""
    armed = folder / "faults"
    armed.mkdir()
    weights.make_model(folder / "policy")
    tasks = [orjson.dumps({"question": f"{number}?"}) for number in range(TASKS)]
    (folder / "train.jsonl").write_bytes(b"\n".join(tasks))
    told = {
        faults.VARIABLE: str(armed),
        "RELIGHT_ENGINE_MODULE": "tests.chaos.parts.engine",
        "RELIGHT_TRAINER_MODULE": "tests.chaos.parts.trainer",
    }
    with mock.patch.dict(os.environ, told):
        if network is not None:
            options["roads"] = network.roads
        async with EmbeddedStack(
            folder / "home", agents=[f"{AGENTS}:two_turns"], flags={"data_root": folder}, **options
        ) as stack:
            await stack.wait_ready()
            database = await connect_database(stack.settings)
            try:
                yield ChaosStack(stack, database, await connect_temporal(stack.settings), armed, network)
            finally:
                await database.close()
