"""Runs continue from checkpoints, in any storage and on any host, and end as the undisturbed run, bit for bit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from relight.faults import FaultPoint
from relight.gpu_worker.object_storage import ObjectStorage
from relight.store.maintenance.check import check_store
from relight.types.names import train_id
from tests.chaos.bucket import s3_server
from tests.chaos.checkpoint_kit import (
    PATIENCE_SECONDS,
    URL,
    gone_for_good,
    gpu_worker,
    in_the_middle_of,
    metric,
    process_died_at,
    soon_lost,
    version_is_recorded,
)
from tests.chaos.stack import ChaosStack, Outcome, chaos_stack, open_folder
from tests.support.orchestration import eventually

STEPS = 8

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with s3_server(), soon_lost(), open_folder() as folder:
        async with chaos_stack(folder) as stack:
            yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undisturbed(chaos: ChaosStack) -> Outcome:
    await (await chaos.start("undisturbed", STEPS)).result()
    return await chaos.outcome("undisturbed")


async def location_of(chaos: ChaosStack, run: str, kind: str, version: int | None = None) -> str:
    """Where a version lies; the newest that has one, by default."""
    query = (
        f"select {kind}_path from policy_versions where run = $1 and version > 0 and {kind}_path is not null"
        " and ($2::int is null or version = $2) order by version desc limit 1"
    )
    return str(await chaos.database.pool.fetchval(query, run, version))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


async def stored(chaos: ChaosStack, run: str) -> dict[str, list[int]]:
    """Versions whose files the record says are there."""
    rows = await chaos.database.pool.fetch("select * from policy_versions where run = $1 and version > 0", run)
    return {
        "checkpoint": sorted(row["version"] for row in rows if row["checkpoint_path"]),
        "export": sorted(row["version"] for row in rows if row["export_deleted_at"] is None),
    }


@pytest.mark.long  # the next one is its short form
async def test_with_a_checkpoint_every_third_step_a_run_continues_between_them(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    handle = await chaos.start("every-third", STEPS, checkpoint_every=3)
    for version, point in ((1, FaultPoint.TRAINED), (4, FaultPoint.SAVED)):
        await version_is_recorded(chaos, "every-third", version)
        await process_died_at(chaos, point)
    await handle.result()
    assert await chaos.outcome("every-third") == undisturbed
    assert await stored(chaos, "every-third") == {"checkpoint": [6, 8], "export": [6, 7, 8]}
    replayed = "select max((metrics ->> 'replayed_steps')::float8) from steps where run = $1"
    assert await chaos.database.pool.fetchval(replayed, "every-third") >= 1


@pytest.mark.parametrize(
    "damage", [flip, pytest.param(cut, marks=pytest.mark.long), pytest.param(Path.unlink, marks=pytest.mark.long)]
)
async def test_a_damaged_checkpoint_and_a_damaged_export_cost_nothing_but_time(
    chaos: ChaosStack, undisturbed: Outcome, damage: Callable[[Path], None]
) -> None:
    """The newest checkpoint is refused and the one before used; the newest export, without which no engine can serve,
    is made again from it."""
    run = f"damaged-by-{damage.__name__}"
    handle = await chaos.start(run, STEPS, checkpoint_every=2)
    await version_is_recorded(chaos, run, 4)
    gpu_worker = chaos.stack.process("gpu-worker")
    pid = chaos.stack.kill("gpu-worker", signal.SIGSTOP)
    damage(Path(await location_of(chaos, run, "checkpoint")) / "optimizer.json")
    damage(Path(await location_of(chaos, run, "export")) / "model.safetensors")
    os.kill(pid, signal.SIGKILL)
    await handle.result()
    assert gpu_worker.restarts
    assert await chaos.outcome(run) == undisturbed
    assert await metric(chaos, run, "checkpoint/refused") == 1
    assert await metric(chaos, run, "replay/differs") == 0
    assert await check_store(chaos.database) == []


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def in_a_bucket(chaos: ChaosStack, undisturbed: Outcome) -> str:
    """A run whose GPU worker died twice in the middle of an upload."""
    handle = await chaos.start("in-a-bucket", STEPS, checkpoints={"url": URL, "keep_last": 1, "keep_every": 3})
    await process_died_at(chaos, FaultPoint.UPLOADING)
    await version_is_recorded(chaos, "in-a-bucket", 3)
    await process_died_at(chaos, FaultPoint.UPLOADING)
    await handle.result()
    return "in-a-bucket"


async def test_a_run_keeps_its_checkpoints_in_object_storage_and_leaves_no_incomplete_files(
    chaos: ChaosStack, undisturbed: Outcome, in_a_bucket: str
) -> None:
    assert await chaos.outcome("in-a-bucket") == undisturbed
    assert await stored(chaos, "in-a-bucket") == {"checkpoint": [3, 6, 8], "export": [3, 6, 7, 8]}
    assert await in_storage(chaos, "in-a-bucket") == {
        await location_of(chaos, "in-a-bucket", kind, version)
        for kind, versions in (await stored(chaos, "in-a-bucket")).items()
        for version in versions
    }
    shown = await chaos.database.pool.fetchval("select string_agg(r::text, ' ') from runs r")
    assert "hush" not in shown


async def in_storage(chaos: ChaosStack, run: str) -> set[str]:
    """What is in the bucket; each of them comes back whole."""
    storage = ObjectStorage(URL)
    found: set[str] = set()
    with open_folder() as folder:
        for number, name in enumerate(sorted(await asyncio.to_thread(storage.names, run))):
            await asyncio.to_thread(storage.download, f"{run}/{name}", folder / str(number))
            found.add(f"{URL}/{run}/{name}")
    return found


async def test_what_retention_deleted_is_recorded_and_a_fork_from_it_is_refused(
    chaos: ChaosStack, undisturbed: Outcome, in_a_bucket: str
) -> None:
    """What a fork started from stays until the fork is done with it; then it is its parent's to keep."""
    code, said = await relight(chaos, "fork", "in-a-bucket", "--from-step", "4", "--detach")
    assert code != 0
    assert "the checkpoint of step 4 of run in-a-bucket was deleted at" in said
    assert "there is: 3, 6, 8" in said
    changes = ["--set", "checkpoints.keep_every=0", "--set", "checkpoints.keep_last=2"]
    code, said = await relight(chaos, "fork", "in-a-bucket", "--from-step", "6", "--name", "heir", "--detach", *changes)
    assert code == 0, said
    await chaos.client.get_workflow_handle(train_id("heir")).result()
    assert (await chaos.outcome("heir")).weights[1:] == undisturbed.weights[6:]
    assert (await stored(chaos, "heir"))["checkpoint"] == [7, 8]
    row = await chaos.database.pool.fetchrow("select * from policy_versions where run = 'heir' and version = 6")
    assert row["checkpoint_deleted_at"]
    parent = await chaos.database.pool.fetchrow(
        "select * from policy_versions where run = 'in-a-bucket' and version = 6"
    )
    assert (parent["forks"], parent["checkpoint_deleted_at"]) == (0, None), "the parent keeps every third itself"
    code, said = await relight(chaos, "status", "heir")
    assert "checkpoints that a fork can start from: 7, 8" in said, said


async def relight(chaos: ChaosStack, *words: str) -> tuple[int, str]:
    """A command of the stack's user: exit code, and all that it said."""
    command = [sys.executable, "-m", "relight.cli", *words, "--home", str(chaos.stack.home)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, said.decode()


async def test_rule_19_after_the_loss_of_temporals_database_a_run_continues_from_postgres_and_checkpoints(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    run = "bereft"
    await chaos.start(run, STEPS)
    await in_the_middle_of(chaos, run, 4)
    chaos.stack.kill("temporal")
    for path in (chaos.stack.home / "temporal").glob("temporal.db*"):
        path.unlink()
    before = await succeeded(chaos, run)
    await chaos.stack.wait_ready(["temporal"], PATIENCE_SECONDS)

    async def driven_again_by_itself() -> bool:
        query = "select status, epoch from runs where run = $1"
        return tuple(await chaos.database.pool.fetchrow(query, run)) == ("running", 2)

    await eventually(driven_again_by_itself, PATIENCE_SECONDS)
    await chaos.client.get_workflow_handle(train_id(run)).result()
    assert await chaos.outcome(run) == undisturbed
    assert before <= await succeeded(chaos, run), "an attempt that had ended well did not count"
    assert await check_store(chaos.database) == []


async def succeeded(chaos: ChaosStack, run: str) -> set[str]:
    query = (
        "select attempt_id from attempts a join rollouts r using (rollout_id) where run = $1 and a.status = 'succeeded'"
    )
    return {row["attempt_id"] for row in await chaos.database.pool.fetch(query, run)}


async def test_another_machine_with_an_empty_disk_takes_over_a_run_whose_host_is_lost(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    run = "moved"
    handle = await chaos.start(run, STEPS, checkpoints=URL, checkpoint_every=2)
    await in_the_middle_of(chaos, run, 6)
    await gone_for_good(chaos)
    with open_folder() as home:
        async with gpu_worker(chaos, home, "machine-2"):
            await handle.result()
            assert await chaos.outcome(run) == undisturbed
            hosts = await chaos.database.pool.fetch(
                "select host, run, state from gpu_hosts order by host = 'machine-2'"
            )
            assert [tuple(row)[1:] for row in hosts] == [(None, "lost"), (None, "idle")]
            assert await check_store(chaos.database) == []
