"""A run on the embedded stack with the real parts outlives the death of each of its processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from temporalio.client import Client

from relight.stack.embedded import EmbeddedStack
from relight.store.database import Database, connect_database
from relight.temporal.connection import connect_temporal
from relight.types import names
from tests.support.orchestration import eventually
from tests.support.tiny_policy import make_tiny_policy

RUN = "phoenix"
STEPS = 5
AGENT = Path(__file__).parents[1] / "support" / "agents" / "digits.py"
KILLED_IN_STEP = {1: "runner", 2: "orchestrator", 3: "store", 4: "gpu-worker"}
"""Which process dies in the middle of which step."""


def prepare(folder: Path) -> dict[str, object]:
    make_tiny_policy(folder / "policy")
    tasks = [orjson.dumps({"question": f"{number}?"}) for number in range(12)]
    (folder / "train.jsonl").write_bytes(b"\n".join(tasks))
    return {
        "agent": "digits",
        "model": "policy",
        "data": {"train": "train.jsonl"},
        "group_size": 4,
        "batch_size": 4,
        "steps": STEPS,
        "algorithm": {"learning_rate": 1e-3},
        "sampling": {"max_tokens": 8},
        "vllm": {"max_model_len": 128},
    }


def in_the_middle_of(database: Database, step: int) -> Callable[[], Awaitable[bool]]:
    """Some rollouts of the step have ended and some have not."""

    async def check() -> bool:
        row = await database.pool.fetchrow(
            "select count(*) filter (where ended_at is not null) as done, count(*) as planned from rollouts"
            " where run = $1 and kind = 'train' and step = $2",
            RUN,
            step,
        )
        return 0 < row["done"] < row["planned"]

    return check


@pytest.mark.timeout(1200)
async def test_a_run_survives_sigkill_of_each_process_and_repeats_no_finished_rollout(folder: Path) -> None:
    file = prepare(folder)
    reference = f"{AGENT}:digits"
    flags = {"data_root": folder}
    async with EmbeddedStack(folder / "home", agents=[reference], flags=flags) as stack:
        await stack.wait_ready()
        client = await connect_temporal(stack.settings)
        database = await connect_database(stack.settings)
        handle = await client.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id(RUN), task_queue=names.ORCHESTRATOR_QUEUE
        )
        killed: list[str] = []
        for step, target in KILLED_IN_STEP.items():
            await eventually(in_the_middle_of(database, step), seconds=400)
            stack.kill(target, signal.SIGKILL)
            killed.append(target)
        result = await asyncio.wait_for(handle.result(), 400)
        assert result["step"] == STEPS
        assert killed == list(KILLED_IN_STEP.values())
        assert all(stack.process(target).restarts == 1 for target in killed)
        await check_rows(database)
        await a_second_run_follows(client, file)
        await database.close()


async def a_second_run_follows(client: Client, file: dict[str, object]) -> None:
    """The stack goes over to the next run, from that one's given model."""
    following = {**file, "steps": 1, "seed": 1}
    handle = await client.start_workflow(
        names.TRAINING_WORKFLOW, following, id=names.train_id("ashes"), task_queue=names.ORCHESTRATOR_QUEUE
    )
    assert (await asyncio.wait_for(handle.result(), 300))["step"] == 1


async def check_rows(database: Database) -> None:
    """What may never happen has not happened."""
    fetch = database.pool.fetch
    again = await fetch(
        "select rollout_id from attempts where failure_class is distinct from 'infrastructure'"
        " group by rollout_id having count(*) > 1"
    )
    assert again == [], "a finished rollout was run again"
    after = await fetch(
        "select later.attempt_id from attempts done join attempts later using (rollout_id)"
        " where done.status = 'succeeded' and later.sequence_id > done.sequence_id"
    )
    assert after == [], "an attempt was opened after a success"
    twice = await fetch("select attempt_id from step_rollouts group by attempt_id having count(*) > 1")
    assert twice == [], "an attempt was trained twice"
    steps = await fetch("select step, status from steps where run = $1 and step > 0 order by step", RUN)
    assert [(row["step"], row["status"]) for row in steps] == [(step, "recorded") for step in range(1, STEPS + 1)]
    versions = await fetch("select version from policy_versions where run = $1 order by version", RUN)
    assert [row["version"] for row in versions] == list(range(STEPS + 1))
    trained = await database.pool.fetchval("select count(*) from step_rollouts where run = $1", RUN)
    assert trained == STEPS * 16, "a rollout was lost"
    wrong = await fetch(
        "select r.rollout_id from generations g join rollouts r using (rollout_id)"
        " where r.kind = 'train' and g.delivered = 'yes'"
        " and (g.version_start <> r.step - 1 or g.version_end <> r.step - 1)"
    )
    assert wrong == [], "a rollout was sampled with another version than its step allows"
