"""Rule 16: a replay uses what each step was done with, and arrives at the weights of the run that was not disturbed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from relight.gpu_worker.trainer_client import TrainerProcess
from relight.store.database import Database
from tests.rules.host import gpu_host
from tests.rules.kit import ManualRun, begin


async def kill(trainer: TrainerProcess) -> None:
    """Returns when the host knows: an update before that fails with a TrainerError, which the workflow tries again."""
    for pid in trainer.pids:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while trainer.alive:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.01)


async def train(
    database: Database, folder: Path, name: str, *, killed_before: int = 0, disturbed: bool = False
) -> ManualRun:
    """Three steps with a change of the learning rate between them. Disturbed: what is replayed is not the same."""
    run = await begin(database, folder, name, checkpoint_every=10)
    async with gpu_host(database, folder, run, f"host-of-{name}") as host:
        for step in (1, 2, 3):
            await run.plan(step)
            await run.play_all(step)
            await run.advance(step)
            if step == killed_before:
                assert host.service is not None
                assert host.service.trainer is not None
                if disturbed:
                    await database.pool.execute("update training_rows set weight = 2 where run = $1", name)
                await kill(host.service.trainer)
            await host.update(run.step_input(step))
            await run.change("set_hyperparameters", {"learning_rate": step / 100})
    return run


async def test_a_trainer_that_died_replays_the_recorded_batches_with_the_values_of_their_own_steps(
    database: Database, tmp_path: Path
) -> None:
    await train(database, tmp_path, "calm")
    await train(database, tmp_path, "killed", killed_before=3)
    text = "select version, weights_hash from policy_versions where run = $1 and version > 0 order by version"
    calm, killed = [[tuple(row) for row in await database.pool.fetch(text, run)] for run in ("calm", "killed")]
    assert calm == killed
    assert len({weights for _, weights in calm}) == 3
    metrics = await database.pool.fetchval("select metrics from steps where run = 'killed' and step = 3")
    assert metrics["replayed_steps"] == 2
    assert await database.pool.fetchval("select count(*) from metrics where name = 'replay/differs'") == 0


async def test_a_trainer_whose_replay_differs_continues_from_the_published_weights_and_counts_the_patched_elements(
    database: Database, tmp_path: Path
) -> None:
    await train(database, tmp_path, "calm")
    await train(database, tmp_path, "other", killed_before=3, disturbed=True)
    text = "select weights_hash from policy_versions where run = $1 and version > 0 order by version"
    calm, other = [[row[0] for row in await database.pool.fetch(text, run)] for run in ("calm", "other")]
    assert calm == other
    counted = await database.pool.fetch(
        "select run, step, name, value from metrics where name like 'replay/%' order by 3"
    )
    assert [tuple(row) for row in counted] == [("other", 2, "replay/differs", 1.0), ("other", 2, "replay/patched", 1.0)]
