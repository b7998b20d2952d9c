"""The stack of the chaos runs, the runs on it, and what they left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
from temporalio.client import Client, WorkflowHandle

from relight import faults
from relight.errors import StackError
from relight.stack.embedded import EmbeddedStack
from relight.stack.process_factory import TEMPORAL
from relight.stack.supervisor import ManagedProcess
from relight.store.database import Database, connect_database
from relight.temporal.connection import connect_temporal
from relight.types import names
from tests.chaos.clocks import Clock, build, may_jump
from tests.chaos.disks import Disk, mounted
from tests.chaos.network import Network
from tests.chaos.parts import agents, weights

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
class Parts:
    """What runs as agent, engine and trainer, and the run that it is given."""

    agent: str
    prepare: Callable[[Path], object]
    """Writes model and tasks into the stack's folder."""
    file: Mapping[str, Any]
    """The run file but its steps."""
    environment: Mapping[str, str]
    tolerance: float | None = None
    """How far reward curves may be apart; None: everything is equal bit for bit."""
    run_seconds: float = 600
    """How long a run may take after the last fault."""
    pause_factor: float = 1.0
    """Makes the pauses between faults longer, where everything takes longer."""


def _fast_files(folder: Path) -> None:
    weights.make_model(folder / "policy")
    tasks = [orjson.dumps({"question": f"{number}?"}) for number in range(TASKS)]
    (folder / "train.jsonl").write_bytes(b"\n".join(tasks))


FAST = Parts(
    agent=f"{Path(__file__).parent / 'parts' / 'agents.py'}:two_turns",
    prepare=_fast_files,
    file={
        "agent": "two_turns",
        "model": "policy",
        "data": {"train": "train.jsonl"},
        "group_size": 4,
        "batch_size": 2,
        "seed": 7,
    },
    environment={
        "RELIGHT_ENGINE_MODULE": "tests.chaos.parts.engine",
        "RELIGHT_TRAINER_MODULE": "tests.chaos.parts.trainer",
    },
)
"""Fast and deterministic: two runs are equal bit for bit."""


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

    def curve(self) -> list[float]:
        """Mean reward of each step."""
        rewards: dict[int, list[float]] = {}
        for step, _, reward, *_ in self.trained:
            rewards.setdefault(step, []).append(reward)
        return [statistics.fmean(rewards[step]) for step in sorted(rewards)]

    def apart_from(self, other: Outcome) -> float:
        """How far two reward curves are apart: the mean over the steps."""
        return statistics.fmean(abs(a - b) for a, b in zip(self.curve(), other.curve(), strict=True))


@dataclass
class ChaosStack:
    """A booted stack with the fast parts, and what can be done to it."""

    stack: EmbeddedStack
    database: Database
    client: Client
    faults: Path
    """Where a fault point is armed."""
    said: Path
    """What the agents wrote down."""
    disks: Mapping[str, Disk]
    """That can be made full; none where nothing may be mounted."""
    clocks: Mapping[str, Clock]
    """Of each process but Temporal; none where they can't be made to jump."""
    holds: Mapping[str, Hold]
    parts: Parts
    network: Network | None = None
    """The proxies between its processes, where there are any."""

    @asynccontextmanager
    async def held_down(self, name: str) -> AsyncGenerator[None]:
        """Without a part: killed, and not started again before the end of this."""
        hold = self.holds[name]
        hold.open.clear()
        try:
            with suppress(StackError, ProcessLookupError):
                self.stack.kill(name, signal.SIGKILL)
            yield
        finally:
            hold.open.set()

    async def start(self, run: str, steps: int, **changes: Any) -> WorkflowHandle[Any, Any]:
        """Start a run. Runs of the same number of steps are the same run under other names."""
        file = {**self.parts.file, "steps": steps, **changes}
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


class Hold:
    """Between a part's death and its next start."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    def on(self, part: ManagedProcess) -> ManagedProcess:
        """The part, which is prepared for its start once this is open."""

        async def prepare() -> None:
            await self.open.wait()
            await part.prepare()

        return replace(part, prepare=prepare)


@asynccontextmanager
async def chaos_stack(
    folder: Path, network: Network | None = None, *, parts: Parts = FAST, clocks: bool = False, **options: Any
) -> AsyncGenerator[ChaosStack]:
    """Boot it.

    Its processes reach each other through `network`, where one is given. With `clocks` those of its processes can be
    made to jump, which makes asking for the time dearer.
    """
    armed, said, home = folder / "faults", folder / "said", folder / "home"
    armed.mkdir()
    said.mkdir()
    parts.prepare(folder)
    environment = {faults.VARIABLE: str(armed), agents.LEDGER: str(said), **parts.environment}
    flags = {"data_root": folder, "home": home}
    if network is not None:
        options["overrides"] = network.overrides
    options["runner_flags"] = ["--env", agents.LEDGER, "--allow-path", str(said), *options.get("runner_flags", ())]
    with mock.patch.dict(os.environ, environment), mounted(home) as disks:
        stack = EmbeddedStack(home, agents=[parts.agent], flags=flags, **options)
        async with stack:
            watches = _clocks(stack, folder) if clocks and may_jump() else {}
            holds = _holds(stack)
            try:
                await stack.wait_ready()
                database = await connect_database(stack.settings)
                try:
                    client = await connect_temporal(stack.settings)
                    yield ChaosStack(stack, database, client, armed, said, disks, watches, holds, parts, network)
                finally:
                    await database.close()
            finally:
                for hold in holds.values():
                    hold.open.set()


def _holds(stack: EmbeddedStack) -> dict[str, Hold]:
    holds = {name: Hold() for name in stack.supervisors}
    for name, hold in holds.items():
        keeper = stack.process(name)
        keeper.part = hold.on(keeper.part)
    return holds


def _clocks(stack: EmbeddedStack, folder: Path) -> dict[str, Clock]:
    """A clock for each process that asks the C library for the time; nothing has been started yet."""
    library = build(folder)
    clocks = {name: Clock(folder / f"clock-{name}", library) for name in stack.supervisors if name != TEMPORAL}
    for name, clock in clocks.items():
        keeper = stack.process(name)
        keeper.part = replace(keeper.part, environment={**keeper.part.environment, **clock.environment()})
    return clocks
