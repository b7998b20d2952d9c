"""A trainer without torch: `python -m tests.chaos.parts.trainer`, with the protocol of `trainer_process`.

The weights of a version are a hash of those before, the rows and the numbers of the step: equal bit for bit whenever
the same things were trained in the same order, and different whenever anything was not.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson

from relight.adapter.training_rows import TrainingRow
from relight.errors import CheckpointError, TrainerError
from relight.gpu_worker.complete_directories import Manifest, commit, temporary_name, verify, write_manifest
from relight.gpu_worker.row_file import read_rows
from relight.gpu_worker.trainer_messages import Saved, TrainResult
from relight.gpu_worker.trainer_process import Channel, Commands, serve
from tests.chaos.parts import weights

EPSILON = 1e-6


class DeterministicTrainer:
    """Holds a version's weights, and a counter in the place of an optimizer's state."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.weights = weights.read(model_dir)
        self.updates = 0
        self.version: int | None = 0
        self.loaded_from = str(model_dir)

    def state(self) -> dict[str, Any]:
        return {"version": self.version, "loaded_from": self.loaded_from, "device": "none", "ranks": 1}

    def load_checkpoint(self, version: int, directory: Path) -> None:
        if verify(directory).meta.get("version") != version:
            raise CheckpointError(f"{directory} does not hold version {version}")
        self.weights = weights.read(directory)
        self.updates = orjson.loads((directory / "optimizer.json").read_bytes())["updates"]
        self.version, self.loaded_from = version, str(directory)

    def load_model(self, version: int, directory: Path) -> None:
        if version > 0:
            verify(directory)
        self.weights = weights.read(directory)
        self.updates = 0
        self.version, self.loaded_from = version, str(directory)

    def agree(self, version: int, export: Path, scratch: Path) -> int:
        verify(export)
        published = weights.read(export)
        differed, self.weights = int(self.weights != published), published
        return differed

    def keep(self, version: int) -> None:
        self._expect_before(version)
        self.version = version

    def train(self, version: int, rows: list[TrainingRow], numbers: bytes) -> None:
        self._expect_before(version)
        row_bytes = [orjson.dumps(row.model_dump(exclude={"rollout_id", "attempt_id", "calls"})) for row in rows]
        self.updates += 1
        self.weights = weights.mixed(self.weights, numbers, str(self.updates).encode(), *row_bytes)
        self.version, self.loaded_from = version, "training"

    def save(self, export_dir: Path | None, checkpoint_dir: Path | None, meta: dict[str, Any]) -> Saved:
        meta = {**meta, "version": self.version, "ranks": 1}
        return Saved(
            export=self._write(export_dir, meta, optimizer=False) if export_dir else None,
            checkpoint=self._write(checkpoint_dir, meta, optimizer=True) if checkpoint_dir else None,
        )

    def _write(self, final: Path, meta: dict[str, Any], *, optimizer: bool) -> Manifest:
        temporary = temporary_name(final)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(self.model_dir, temporary)
        weights.write(temporary, self.weights)
        if optimizer:
            (temporary / "optimizer.json").write_bytes(orjson.dumps({"updates": self.updates}))
        write_manifest(temporary, meta)
        return commit(temporary, final)

    def _expect_before(self, version: int) -> None:
        if self.version != version - 1:
            raise TrainerError(f"version {version} is made from {version - 1}, but the trainer holds {self.version}")


class DeterministicCommands(Commands):
    """What a trainer can be asked, without verl."""

    def __init__(self, trainer: DeterministicTrainer) -> None:
        super().__init__(trainer)  # type: ignore[arg-type]  # the same methods, as far as `Commands` calls them
        self._own = trainer

    def do_advantages(
        self, estimator: str, rewards: list[float], groups: list[str], options: dict[str, Any]
    ) -> list[float]:
        """GRPO's."""
        by_group: dict[str, list[float]] = defaultdict(list)
        for reward, group in zip(rewards, groups, strict=True):
            by_group[group].append(reward)
        return [
            (reward - statistics.fmean(by_group[group])) / (statistics.pstdev(by_group[group]) + EPSILON)
            for reward, group in zip(rewards, groups, strict=True)
        ]

    def do_train(
        self, version: int, rows_file: Path, logprobs_file: Path, hyperparameters: dict[str, Any], seed: int
    ) -> TrainResult:
        rows = read_rows(rows_file)
        numbers = orjson.dumps([hyperparameters, seed], option=orjson.OPT_SORT_KEYS)
        self._own.train(version, rows, numbers)
        logprobs_file.write_bytes(b"".join(orjson.dumps(row.sampled_logprobs) + b"\n" for row in rows))
        return TrainResult({"loss": 0.0, "optimizer_steps": 1.0}, [], {})


def make(arguments: argparse.Namespace, channel: Channel) -> Commands:
    return DeterministicCommands(DeterministicTrainer(Path(arguments.model_dir)))


if __name__ == "__main__":
    serve(make)
