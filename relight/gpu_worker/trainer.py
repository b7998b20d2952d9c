"""One policy in training: verl's TrainingWorker, driven a step at a time.

The update is verl's: its engine, its `ppo_loss` and policy losses, its correction of the mismatch between sampler and
trainer. Relight turns rows into its tensors (`tensor_batch.py`), gives rollouts equal weight (`losses.py`), may change
the learning rate from step to step, and starts each update from a given seed. It runs on each rank alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.trainer.config import CheckpointConfig, RolloutCorrectionConfig
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import append_to_dict
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.engine_workers import TrainingWorker

from relight.adapter.training_rows import TrainingRow
from relight.errors import CheckpointError, ConfigError, TrainerError
from relight.gpu_worker.complete_directories import verify
from relight.gpu_worker.corrections import correct_mismatch
from relight.gpu_worker.losses import RejectedSteps, WeightedPpoLoss
from relight.gpu_worker.model_saving import write_agreed, write_checkpoint, write_export
from relight.gpu_worker.stopwatch import Stopwatch
from relight.gpu_worker.tensor_batch import Batch, make_batch, mini_batches, pack, part_of
from relight.gpu_worker.trainer_logprobs import logprobs_of
from relight.gpu_worker.trainer_messages import Saved, TrainerState, TrainResult
from relight.store.storable import finite
from relight.types.hyperparameters import (
    NONFINITE_STEPS,
    OPTIMIZER_STEPS,
    REJECTED_STEPS,
    STEP_COUNTS,
    Hyperparameters,
)
from relight.types.verl_keys import STARTUP_KEYS, section

_FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
_MICRO_BATCH = {"cpu": 64, "cuda": 8}


class Trainer:
    """A policy version with its optimizer."""

    def __init__(self, model_dir: Path, device: str, startup: Mapping[str, Any]) -> None:
        self.model_dir = model_dir
        self.device = device
        self.startup = dict(startup)
        self.version: int | None = 0
        self.loaded_from = str(model_dir)
        self.worker = self._make_worker(model_dir, forward_only=False)
        self._reference: TrainingWorker | None = None

    def state(self) -> TrainerState:
        """Which version is held, and where it came from; version null: none, an update broke off half-way."""
        return TrainerState(self.version, self.loaded_from, self.device, torch.distributed.get_world_size())

    def load_checkpoint(self, version: int, directory: Path) -> None:
        """Load a checkpoint: weights, optimizer and random state."""
        ranks = torch.distributed.get_world_size()
        meta = verify(directory).meta
        if meta.get("ranks") != ranks:
            raise CheckpointError(f"{directory} was written by {meta.get('ranks')} ranks and can't be read by {ranks}")
        self._expect(version, meta, directory)
        self.version = None
        self.worker.load_checkpoint(str(directory))
        self._holds(version, directory)

    def load_model(self, version: int, directory: Path) -> None:
        """Load the weights of an export, or of the given model (version 0, which needs no manifest)."""
        if version > 0 or (directory / "manifest.json").exists():
            self._expect(version, verify(directory).meta, directory)
        self.version = None
        self._take_weights(directory)
        self._holds(version, directory)

    def agree(self, version: int, export: Path, scratch: Path) -> int:
        """Adjust replayed weights to the published ones; the optimizer is kept. Returns how many elements differed."""
        self._expect(version, verify(export).meta, export)
        if self.version != version:
            raise TrainerError(f"the trainer holds version {self.version}, not {version}")
        differing = write_agreed(self._engine, self.model_dir, export, scratch)
        self.version = None
        optimizer_state = self._engine.optimizer.state_dict()
        self._take_weights(scratch)
        self._engine.optimizer.load_state_dict(optimizer_state)
        self._holds(version, export)
        return differing

    def _take_weights(self, directory: Path) -> None:
        self.worker.model_config.local_path = str(directory)
        self.worker.reset()

    def keep(self, version: int) -> None:
        """Make the held weights and optimizer the next version, after a step without anything to train on."""
        self._expect_before(version)
        self.version = version

    def save(self, export_dir: Path | None, checkpoint_dir: Path | None, meta: dict[str, Any]) -> Saved:
        """Write what was asked for, each complete or not at all."""
        if self.version is None:
            raise TrainerError("the trainer holds no version to save: load one first")
        meta = {**meta, "version": self.version, "ranks": torch.distributed.get_world_size()}
        engine = self._engine
        return Saved(
            export=write_export(engine, self.model_dir, export_dir, meta) if export_dir else None,
            checkpoint=write_checkpoint(engine, checkpoint_dir, self.version, meta) if checkpoint_dir else None,
        )

    def train(self, version: int, rows: list[TrainingRow], numbers: Hyperparameters, seed: int) -> TrainResult:
        """Make `version` out of the one before it."""
        self._check_update(version, rows, numbers)
        clock = Stopwatch()
        seed_everything(seed)
        batch = make_batch(rows, numbers.loss_agg_mode, numbers.sequence)
        clock.lap("rows")
        held = self._logprobs(self.worker, batch, numbers)
        clock.lap("logprobs")
        prepared, metrics = correct_mismatch(batch.with_columns(old_log_probs=held), numbers)
        if numbers.use_kl_loss:
            prepared = prepared.with_columns(ref_log_prob=self._logprobs(self.reference, batch, numbers))
            clock.lap("reference_logprobs")
        self.version = None
        metrics |= self._optimize(prepared, numbers, seed)
        self.version, self.loaded_from = version, "training"
        clock.lap("update")
        logprobs = [held[i, : len(row.response_ids)].tolist() for i, row in enumerate(rows)]
        return TrainResult(finite(metrics), logprobs, clock.seconds)

    @property
    def reference(self) -> TrainingWorker:
        """Version 0, the reference of the KL loss."""
        if self._reference is None:
            self._reference = self._make_worker(self.model_dir, forward_only=self.device != "cpu")
        return self._reference

    def _optimize(self, batch: Batch, numbers: Hyperparameters, seed: int) -> dict[str, float]:
        set_optimizer(self._engine, numbers)
        config = actor_config(numbers, self._micro_batch_size(numbers), self._strategy)
        collected: dict[str, Any] = {}
        steps: dict[str, float] = dict.fromkeys(STEP_COUNTS, 0.0)
        with RejectedSteps(self._engine) as rejected:
            self.worker.set_loss_fn(WeightedPpoLoss(config, rejected.kept))
            for epoch in range(numbers.ppo_epochs):
                for indices in mini_batches(batch.rows, numbers, seed + epoch):
                    kind, metrics = self._try_step(batch, indices, numbers, seed, rejected)
                    steps[kind] += 1
                    append_to_dict(collected, metrics)
        return {name: float(value) for name, value in reduce_metrics(collected).items()} | steps

    def _try_step(
        self, batch: Batch, indices: list[int], numbers: Hyperparameters, seed: int, rejected: RejectedSteps
    ) -> tuple[str, dict[str, Any]]:
        """Try an optimizer step: which of `STEP_COUNTS` it counts for, and its metrics if it changed the weights; if
        the loss rejected every token, what it measured of that."""
        if not bool(batch.columns["response_mask"][indices].any()):
            return REJECTED_STEPS, {}
        metrics = self._step(batch, indices, numbers, seed)
        if rejected.last_left_out:
            return REJECTED_STEPS, {
                name: values for name, values in metrics.items() if name.startswith("rollout_corr/")
            }
        if not np.isfinite(metrics["grad_norm"]).all():  # verl has left the weights alone, and printed a warning
            return NONFINITE_STEPS, {}
        return OPTIMIZER_STEPS, metrics

    def _step(self, batch: Batch, indices: list[int], numbers: Hyperparameters, seed: int) -> dict[str, Any]:
        """One optimizer step."""
        engine = self._engine
        ranks = engine.get_data_parallel_size()
        part = part_of(batch, indices, engine.get_data_parallel_rank(), ranks, self._micro_batch_size(numbers))
        data = pack(
            batch,
            part,
            numbers.temperature,
            compute_loss=True,
            calculate_entropy=bool(numbers.entropy_coeff) or numbers.verl.get("actor.calculate_entropy", False),
            global_batch_size=part.sequences,
            mini_batch_size=len(part.indices) * ranks,
            epochs=1,
            seed=seed,
            dataloader_kwargs={"shuffle": False},
            use_dynamic_bsz=numbers.use_dynamic_bsz,
            max_token_len_per_gpu=numbers.max_token_len,
        )
        return tu.get(self.worker.train_mini_batch(data), "metrics")

    def _logprobs(self, worker: TrainingWorker, batch: Batch, numbers: Hyperparameters) -> torch.Tensor:
        size = numbers.infer_micro_batch_size or 2 * self._micro_batch_size(numbers)
        return logprobs_of(worker, batch, numbers, size)

    def _micro_batch_size(self, numbers: Hyperparameters) -> int:
        return numbers.micro_batch_size or _MICRO_BATCH[self.device]

    @property
    def _engine(self) -> Any:
        return self.worker.engine

    @property
    def _strategy(self) -> str:
        return self.startup.get("actor.fsdp_config.strategy", "fsdp2")

    def _make_worker(self, model_dir: Path, *, forward_only: bool) -> TrainingWorker:
        worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=self._model_config(model_dir),
                engine_config=self._engine_config(forward_only),
                optimizer_config=FSDPOptimizerConfig(**section(self.startup, "actor.optim")),
                checkpoint_config=CheckpointConfig(),
                profiler_config=None,
            )
        )
        worker.reset()
        return worker

    def _model_config(self, model_dir: Path) -> HFModelConfig:
        keys = section(self.startup, "model")
        override = {"attn_implementation": "sdpa", **keys.pop("override_config", {})}
        defaults = {"use_remove_padding": False, "enable_gradient_checkpointing": self.device != "cpu"}
        return HFModelConfig(path=str(model_dir), override_config=override, **{**defaults, **keys})

    def _engine_config(self, forward_only: bool) -> FSDPEngineConfig:
        defaults: dict[str, Any] = {"strategy": "fsdp2", "use_torch_compile": False}
        if self.device == "cpu":
            defaults |= {"dtype": "float32", "mixed_precision": _FP32}
        keys = {**defaults, **section(self.startup, "actor.fsdp_config")}
        return FSDPEngineConfig(forward_only=forward_only, use_dynamic_bsz=False, use_remove_padding=False, **keys)

    def _check_update(self, version: int, rows: list[TrainingRow], numbers: Hyperparameters) -> None:
        self._expect_before(version)
        if not any(row.trained_tokens for row in rows):
            raise TrainerError("no row has a token to train on")
        for key, value in numbers.verl.items():
            if key in STARTUP_KEYS and self.startup.get(key) != value:
                raise ConfigError(f"verl.{key} is read when the trainer process starts: restart it to use {value!r}")

    def _expect_before(self, version: int) -> None:
        if self.version != version - 1:
            raise TrainerError(f"version {version} is made from {version - 1}, but the trainer holds {self.version}")

    def _expect(self, version: int, meta: dict[str, Any], directory: Path) -> None:
        if meta.get("version") != version:
            raise CheckpointError(f"{directory} holds version {meta.get('version')}, not {version}")

    def _holds(self, version: int, directory: Path) -> None:
        self.version, self.loaded_from = version, str(directory)


def actor_config(numbers: Hyperparameters, micro_batch_size: int, strategy: str) -> FSDPActorConfig:
    """The configuration of verl's losses."""
    policy_loss = {"loss_mode": numbers.loss_mode, **section(numbers.verl, "actor.policy_loss")}
    if numbers.rollout_correction.get("bypass_mode"):
        policy_loss |= {"loss_mode": "bypass_mode"}
    correction = RolloutCorrectionConfig(**{"rollout_is": None, **numbers.rollout_correction})
    return FSDPActorConfig(
        strategy=strategy,
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=micro_batch_size,
        clip_ratio=numbers.clip_ratio,
        clip_ratio_low=numbers.clip_ratio_low or numbers.clip_ratio,
        clip_ratio_high=numbers.clip_ratio_high or numbers.clip_ratio,
        loss_agg_mode=numbers.loss_agg_mode,
        entropy_coeff=numbers.entropy_coeff,
        use_kl_loss=numbers.use_kl_loss,
        kl_loss_coef=numbers.kl_loss_coef,
        kl_loss_type=numbers.kl_loss_type,
        policy_loss=PolicyLossConfig(rollout_correction=correction, **policy_loss),
        **section(numbers.verl, "actor"),
    )


def set_optimizer(engine: Any, numbers: Hyperparameters) -> None:
    """Set this step's hyper-parameters on the live optimizer; its moments are kept."""
    engine.optimizer_config.clip_grad = numbers.grad_clip
    for group in engine.optimizer.param_groups:
        group["lr"] = group["initial_lr"] = numbers.learning_rate
        group["weight_decay"] = numbers.weight_decay
        if "betas" in group:
            group["betas"] = numbers.betas
    # verl steps its constant schedule after each update, which resets the rate to that of the schedule.
    engine.lr_scheduler.base_lrs = [numbers.learning_rate] * len(engine.optimizer.param_groups)


def seed_everything(seed: int) -> None:
    """Seed all random number generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
