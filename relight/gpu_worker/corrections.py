"""The mismatch between the sampler's logprobs and the trainer's: always measured, corrected if the run file says so.

All of it is verl's `rollout_corr_helper`: importance weights and rejections in the decoupled mode, or, in bypass mode,
the sampler's logprobs in place of the trainer's and a loss that corrects for itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from verl.trainer.ppo.rollout_corr_helper import (
    compute_offpolicy_metrics,
    compute_rollout_correction_and_rejection_mask,
)

from relight.errors import ConfigError
from relight.gpu_worker.tensor_batch import Batch
from relight.types.hyperparameters import Hyperparameters

_DECOUPLED_KEYS = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_is_batch_normalize",
    "rollout_rs",
    "rollout_rs_threshold",
)


def correct_mismatch(batch: Batch, numbers: Hyperparameters) -> tuple[Batch, dict[str, float]]:
    """The corrected batch, and metrics of the mismatch."""
    wanted = numbers.rollout_correction
    sampled = batch.columns.get("sampled_log_probs")
    if sampled is None:
        if wanted:
            raise ConfigError("algorithm.rollout_correction needs the sampler's logprobs, which some rows don't have")
        return batch, {}
    if wanted.get("bypass_mode"):
        return batch.with_columns(old_log_probs=sampled), _measure(batch)
    if not wanted:
        return batch, _measure(batch)
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=batch.columns["old_log_probs"],
        rollout_log_prob=sampled,
        response_mask=batch.columns["response_mask"],
        **{key: wanted[key] for key in _DECOUPLED_KEYS if key in wanted},
    )
    corrected = replace(batch.with_columns(response_mask=mask), weights=_weights_after(batch, mask, numbers))
    if weights is not None:
        corrected = corrected.with_columns(rollout_is_weights=weights.batch["rollout_is_weights"])
    return corrected, _scalars(metrics, "")


def _weights_after(batch: Batch, mask: torch.Tensor, numbers: Hyperparameters) -> torch.Tensor:
    """The rows' weights after a rejection, so that a rollout's mean is over the tokens that are still trained."""
    if numbers.loss_agg_mode != "seq-mean-token-mean" or numbers.sequence != "rollout":
        return batch.weights
    numbers_by_rollout = {row.rollout_id: number for number, row in enumerate(batch.rows)}
    rollouts = torch.tensor([numbers_by_rollout[row.rollout_id] for row in batch.rows])
    before, after = batch.columns["response_mask"].sum(-1), mask.sum(-1)
    all_before, all_after = (torch.zeros_like(n).index_add(0, rollouts, n)[rollouts] for n in (before, after))
    return batch.weights * (after * all_before) / (before * all_after).clamp(min=1)


def _measure(batch: Batch) -> dict[str, float]:
    metrics = compute_offpolicy_metrics(
        old_log_prob=batch.columns["old_log_probs"],
        rollout_log_prob=batch.columns["sampled_log_probs"],
        response_mask=batch.columns["response_mask"],
    )
    return _scalars(metrics, "rollout_corr/")


def _scalars(metrics: dict[str, Any], prefix: str) -> dict[str, float]:
    return {f"{prefix}{name}": float(value) for name, value in metrics.items()}
