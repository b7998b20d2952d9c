"""The deterministic trainer of the chaos runs, with a gate before it trains."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from relight.gpu_worker.trainer_messages import TrainResult
from relight.gpu_worker.trainer_process import Channel, Commands, serve
from tests.chaos.parts.trainer import DeterministicCommands, DeterministicTrainer
from tests.integration.operations.parts import gates


class GatedCommands(DeterministicCommands):
    """Waits at the gate `trainer`. The gates lie beside the model, since a trainer's environment is clean."""

    def __init__(self, trainer: DeterministicTrainer) -> None:
        super().__init__(trainer)
        self.gates = trainer.model_dir.resolve().parent / "gates"

    def do_train(
        self, version: int, rows_file: Path, logprobs_file: Path, hyperparameters: dict[str, Any], seed: int
    ) -> TrainResult:
        gates.pass_(self.gates, "trainer", str(version))
        return super().do_train(version, rows_file, logprobs_file, hyperparameters, seed)


def make(arguments: argparse.Namespace, channel: Channel) -> Commands:
    return GatedCommands(DeterministicTrainer(Path(arguments.model_dir)))


if __name__ == "__main__":
    serve(make)
