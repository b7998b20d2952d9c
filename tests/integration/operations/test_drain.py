"""SIGTERM to the processes of a booted stack, in the middle of what they do: a drain loses no work."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest
import pytest_asyncio
from temporalio.client import Client

from relight.stack.embedded import EmbeddedStack
from relight.stack.supervisor import StackEvent
from relight.store.database import Database, connect_database
from relight.temporal.connection import connect_temporal
from relight.types import names
from tests.chaos.parts import weights
from tests.chaos.stack import open_folder
from tests.integration.operations.parts import gates
from tests.support.orchestration import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENTS = Path(__file__).parent / "parts" / "agents.py"
DRAIN_SECONDS = 8
PATIENCE_SECONDS = 120
ATTEMPTS = """
select a.* from attempts a join rollouts r using (rollout_id) where r.run = $1 order by a.rollout_id, a.sequence_id
"""


@dataclass
class Drained:
    """A stack whose processes stop at gates."""

    stack: EmbeddedStack
    database: Database
    client: Client
    gates: Path
    events: list[StackEvent]

    async def start(self, run: str, **changes: Any) -> Any:
        file = {"agent": "held", "model": "policy", "data": {"train": "train.jsonl"}, "group_size": 4, "batch_size": 1}
        alone = {"steps": 1, "preflight": False}  # whose rollout would wait at the gate by itself
        workflow = (names.TRAINING_WORKFLOW, {**file, **alone, **changes})
        return await self.client.start_workflow(*workflow, id=names.train_id(run), task_queue=names.ORCHESTRATOR_QUEUE)

    async def until_at(self, gate: str, number: int) -> None:
        async def there() -> bool:
            return gates.waiting(self.gates, gate) >= number

        await eventually(there, PATIENCE_SECONDS)

    def terminate(self, *parts: str) -> list[tuple[str, int]]:
        """SIGTERM; the parts with their process ids."""
        return [(part, self.stack.kill(part, signal.SIGTERM)) for part in parts]

    async def ended_well(self, terminated: list[tuple[str, int]]) -> None:
        wanted = {f"{part} (pid {pid}) died: exit status 0" for part, pid in terminated}

        async def ended() -> bool:
            return all(any(event.text.startswith(text) for event in self.events) for text in wanted)

        await eventually(ended, PATIENCE_SECONDS)

    async def busiest(self, run: str, *runners: str) -> tuple[str, set[str]]:
        """The runner with most attempts of a run, and which these are."""
        rows = await self.attempts(run)
        by_runner = {
            part: {row["attempt_id"] for row in rows if f"-{self.stack.process(part).pid}-" in row["worker_id"]}
            for part in runners
        }
        return max(by_runner.items(), key=lambda item: len(item[1]))

    async def attempts(self, run: str) -> list[Any]:
        return list(await self.database.pool.fetch(ATTEMPTS, run))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drained() -> AsyncGenerator[Drained]:
    with open_folder() as folder:
        known = folder / "gates"
        known.mkdir()
        weights.make_model(folder / "policy")
        (folder / "train.jsonl").write_bytes(orjson.dumps({"question": "7*8?"}))
        environment = {
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "RELIGHT_DRAIN_SECONDS": str(DRAIN_SECONDS),
            "RELIGHT_ENGINE_MODULE": "tests.chaos.parts.engine",
            "RELIGHT_TRAINER_MODULE": "tests.integration.operations.parts.trainer",
        }
        events: list[StackEvent] = []
        options: dict[str, Any] = {"agents": [f"{AGENTS}:held"], "runners": 2, "flags": {"data_root": folder}}
        (folder / "variables").write_text(f"{gates.VARIABLE}={known}\nPYTHONPATH\n")
        flags = ["--allow-path", str(known), "--env-file", str(folder / "variables"), "--concurrency", "8"]
        with mock.patch.dict(os.environ, environment):
            async with EmbeddedStack(folder / "home", runner_flags=flags, on_event=events.append, **options) as stack:
                await stack.wait_ready()
                database = await connect_database(stack.settings)
                try:
                    yield Drained(stack, database, await connect_temporal(stack.settings), known, events)
                finally:
                    await database.close()
                    for gate in ("agent", "trainer"):
                        with suppress(FileNotFoundError):
                            gates.open_(known, gate)


async def test_attempts_that_end_while_their_runner_drains_are_not_repeated(drained: Drained) -> None:
    gates.shut(drained.gates, "agent")
    handle = await drained.start("drained")
    await drained.until_at("agent", 4)
    terminated = drained.terminate("runner", "runner-2", "orchestrator")
    gates.open_(drained.gates, "agent")
    await drained.ended_well(terminated)
    assert (await finished(handle))["step"] == 1
    attempts = await drained.attempts("drained")
    assert [(row["status"], row["sequence_id"]) for row in attempts] == [("succeeded", 1)] * 4


async def test_attempts_that_outlast_the_drain_go_to_the_next_runner_at_once_and_cost_no_try(drained: Drained) -> None:
    await drained.stack.wait_ready(["runner", "runner-2", "orchestrator"])
    gates.shut(drained.gates, "agent")
    handle = await drained.start("handed")
    await drained.until_at("agent", 4)
    part, held = await drained.busiest("handed", "runner", "runner-2")
    await drained.ended_well(drained.terminate(part))
    await drained.until_at("agent", 4 + len(held))
    gates.open_(drained.gates, "agent")
    await finished(handle)
    attempts = await drained.attempts("handed")
    back = [row for row in attempts if row["message"] == "handed back by a runner that ends"]
    assert {row["attempt_id"] for row in back} == held
    for row in back:
        (again,) = (other for other in attempts if other["rollout_id"] == row["rollout_id"] and other != row)
        assert (row["failure_class"], again["status"], again["try_number"]) == ("infrastructure", "succeeded", 1)
        assert not await timed_out(drained.client, row["rollout_id"])
    assert len(attempts) == 4 + len(back)
    assert await drained.database.pool.fetchval("select sum(deaths) from rollouts where run = 'handed'") == 0


async def test_an_update_that_ends_while_its_gpu_worker_drains_is_made_once(drained: Drained) -> None:
    await drained.stack.wait_ready()
    gates.shut(drained.gates, "trainer")
    handle = await drained.start("updated")
    await drained.until_at("trainer", 1)
    terminated = drained.terminate("gpu-worker")
    gates.open_(drained.gates, "trainer")
    await drained.ended_well(terminated)
    await finished(handle)
    assert await tries_of(handle, names.UPDATE_POLICY) == [1]
    assert [row["status"] for row in await drained.attempts("updated")] == ["succeeded"] * 4


async def test_an_update_that_outlasts_the_drain_is_made_again_by_the_next_gpu_worker(drained: Drained) -> None:
    await drained.stack.wait_ready()
    gates.shut(drained.gates, "trainer")
    handle = await drained.start("repeated")
    await drained.until_at("trainer", 1)
    await drained.ended_well(drained.terminate("gpu-worker"))
    gates.open_(drained.gates, "trainer")
    await finished(handle)
    assert await tries_of(handle, names.UPDATE_POLICY) == [2]
    hashes = "select weights_hash from policy_versions where run = any($1) and version = 1"
    made = await drained.database.pool.fetch(hashes, ["updated", "repeated"])
    assert len({row["weights_hash"] for row in made}) == 1, "the same rows, trained twice or in part"


async def finished(handle: Any) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await handle.result()


async def timed_out(client: Client, rollout_id: str) -> bool:
    """Whether Temporal found a try of the rollout's attempt lost, which takes until its heartbeat is overdue."""
    handle = client.get_workflow_handle(names.rollout_workflow_id(rollout_id))
    events = [event async for event in handle.fetch_history_events()]
    starts = [event.activity_task_started_event_attributes for event in events]
    return any(start.last_failure.HasField("timeout_failure_info") for start in starts)


async def tries_of(handle: Any, activity: str) -> list[int]:
    """On which try each activity of this type ended."""
    scheduled: dict[int, str] = {}
    tries: list[int] = []
    async for event in handle.fetch_history_events():
        if kind := event.activity_task_scheduled_event_attributes.activity_type.name:
            scheduled[event.event_id] = kind
        started = event.activity_task_started_event_attributes
        if scheduled.get(started.scheduled_event_id) == activity:
            tries.append(started.attempt)
    return tries
