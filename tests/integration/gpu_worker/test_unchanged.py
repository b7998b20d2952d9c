"""Whether a step has moved the weights is written down after it was trained, with the steps that were skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from relight.adapter.training_rows import TrainingRow
from relight.gpu_worker.complete_directories import Manifest, commit, temporary_name, write_manifest
from relight.gpu_worker.engine_supervisor import EngineSupervisor
from relight.gpu_worker.policy_update import PolicyUpdate
from relight.gpu_worker.step_trainer import StepTrainer
from relight.gpu_worker.trainer_client import TrainerProcess
from relight.gpu_worker.trainer_messages import Saved, TrainerState, TrainResult
from relight.gpu_worker.version_files import VersionFiles
from relight.store.database import Database
from relight.types.run_file import Checkpoints
from tests.rules.kit import begin


class ScriptedTrainer:
    """Makes versions out of nothing, and says what verl would have said."""

    def __init__(self, metrics: dict[str, float]) -> None:
        self.metrics = metrics
        self.version = 0
        self.trained_with: list[Mapping[str, Any]] = []

    async def state(self) -> TrainerState:
        return TrainerState(self.version, "given", "cpu", 1)

    async def advantages(
        self, estimator: str, rewards: Sequence[float], groups: Sequence[str], options: Mapping[str, Any]
    ) -> list[float]:
        self.trained_with.append(options)
        return list(rewards)

    async def train(
        self, version: int, rows: Sequence[TrainingRow], hyperparameters: Mapping[str, Any], *, seed: int
    ) -> TrainResult:
        self.version = version
        return TrainResult(self.metrics, [[0.0] * len(row.response_ids) for row in rows], {})

    async def keep(self, version: int) -> TrainerState:
        self.version = version
        return await self.state()

    async def save(self, export: Path, checkpoint: Path | None, *, meta: Mapping[str, Any]) -> Saved:
        return Saved(export=self._written(export, {**meta, "version": self.version}), checkpoint=None)

    def _written(self, final: Path, meta: dict[str, Any]) -> Manifest:
        temporary = temporary_name(final)
        temporary.mkdir(parents=True)
        (temporary / "model.safetensors").write_bytes(b"weights")
        write_manifest(temporary, meta)
        return commit(temporary, final)


class NoEngines:
    async def wait_for(self, version: int) -> None:
        return None


def updating(database: Database, run: str, trainer: ScriptedTrainer, home: Path) -> PolicyUpdate:
    """An update in which all but the trainer and the engines is real."""
    files = VersionFiles(home, run)
    steps = StepTrainer(database, run, cast(TrainerProcess, trainer), files, home)
    engines = cast(EngineSupervisor, NoEngines())
    return PolicyUpdate(database, "host", steps, engines, Checkpoints(), asyncio.Lock())


def made(optimizer: int, nonfinite: int) -> dict[str, float]:
    return {"optimizer_steps": float(optimizer), "nonfinite_steps": float(nonfinite), "rejected_steps": 0.0}


@pytest.mark.parametrize(
    ("metrics", "unchanged"), [(made(2, 0), False), (made(1, 1), False), (made(0, 2), True), (None, True)]
)
async def test_a_step_is_unchanged_where_no_optimizer_step_was_made(
    database: Database, tmp_path: Path, metrics: dict[str, float] | None, unchanged: bool
) -> None:
    run = await begin(database, tmp_path, "skipping")
    await run.plan(1)
    await run.play_all(1)
    await run.advance(1)
    if metrics is None:  # the rollouts count, but no call of theirs can be trained on
        await database.pool.execute("update generations set token_ids = '{}'")
    update = updating(database, run.name, ScriptedTrainer(metrics or {}), tmp_path)
    result = await update.make_version(1, checkpoint=False, share_gpu=False)
    row = await database.pool.fetchrow(
        "select unchanged, status, metrics from steps where run = $1 and step = 1", run.name
    )
    assert (result.unchanged, row["unchanged"], row["status"]) == (unchanged, unchanged, "recorded")
    assert row["metrics"]["trained"] > 0
    if metrics:
        assert row["metrics"].items() >= metrics.items()
        recorded = await database.pool.fetchval(
            "select value from metrics where run = $1 and name = 'train/nonfinite_steps'", run.name
        )
        assert recorded == metrics["nonfinite_steps"]


async def test_the_estimator_that_uses_length_gets_the_length_of_each_rollout(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "lengths", algorithm={"name": "opo"})
    await run.plan(1)
    await run.play_all(1)
    await run.advance(1)
    trainer = ScriptedTrainer(made(1, 0))
    await updating(database, run.name, trainer, tmp_path).make_version(1, checkpoint=False, share_gpu=False)
    written = await database.pool.fetch(
        "select sum(m) as tokens from training_rows, unnest(mask) as m where run = $1 group by rollout_id", run.name
    )
    assert sorted(trainer.trained_with[0]["lengths"]) == sorted(row["tokens"] for row in written)
