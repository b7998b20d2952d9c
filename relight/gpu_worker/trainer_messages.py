"""What a trainer process answers: made by its trainer, sent as JSON, read by its client. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from relight.gpu_worker.complete_directories import Manifest


@dataclass(frozen=True)
class TrainerState:
    """What a trainer holds."""

    version: int | None
    """None: nothing that could be used, an update or a load broke off half-way."""
    loaded_from: str
    device: str
    ranks: int


@dataclass(frozen=True)
class TrainResult:
    """What an update did."""

    metrics: dict[str, float]
    """verl's, averaged over mini-batches."""
    logprobs: list[list[float]]
    """The trainer's logprob of each response token of each row, before the update; they go through a file."""
    seconds: dict[str, float]
    """Where the time went."""


class Saved(BaseModel):
    """The manifests of what was written."""

    model_config = ConfigDict(frozen=True)

    export: Manifest | None = None
    checkpoint: Manifest | None = None
