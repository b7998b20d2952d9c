"""verl's policy loss over rows of different weights.

The losses and their aggregation are verl's, called once for each micro-batch. Every policy loss of verl's multiplies
each token's loss by its importance weight, so a row's factor is passed there; entropy and KL are multiplied here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_reinforce, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.padding import no_padding_2_padding

# What verl says of their parameters' types is not what it calls them with.
_kl_penalty: Any = kl_penalty
_policy_loss_fn: Callable[[str], Any] = get_policy_loss_fn


class RejectedSteps:
    """Has the engine leave out optimizer steps of mini-batches of which the loss itself rejects every token.

    verl would make them: with a gradient of zero, by the optimizer's momentum and the weight decay alone.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.kept: list[torch.Tensor] = []
        """Tokens that the loss kept of each micro-batch since the last step; empty if it rejects none by itself."""
        self.last_left_out = False

    def __enter__(self) -> Self:
        self.engine.optimizer_step = self._step_unless_rejected
        return self

    def __exit__(self, *_: object) -> None:
        del self.engine.optimizer_step  # the class's own is found again

    def _step_unless_rejected(self) -> Any:
        self.last_left_out = bool(self.kept) and self._tokens_on_all_ranks() == 0
        self.kept.clear()
        if self.last_left_out:
            self.engine.optimizer_zero_grad()
            return 0.0
        return type(self.engine).optimizer_step(self.engine)

    def _tokens_on_all_ranks(self) -> int:
        tokens = torch.stack(self.kept).sum()
        torch.distributed.all_reduce(tokens, group=self.engine.get_data_parallel_group())
        return int(tokens)


Loss = tuple[torch.Tensor, dict[str, Any]]
"""A loss and its metrics."""


class WeightedPpoLoss:
    """verl's `ppo_loss`, called with micro-batches in which the losses of a row are multiplied by its `row_weight`.

    A loss that rejects tokens by itself adds to `kept` how many it kept.
    """

    def __init__(self, config: ActorConfig, kept: list[torch.Tensor]) -> None:
        self.config = config
        self.kept = kept

    def __call__(self, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None) -> Loss:
        """The loss of a micro-batch."""
        config = self.config
        config.global_batch_info.update(
            {name: data[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")},
            loss_scale_factor=config.loss_scale_factor,
        )
        log_prob = no_padding_2_padding(model_output["log_probs"], data)
        mask = data["response_mask"].to(bool)
        factor = data["row_weight"].unsqueeze(1).expand_as(log_prob)
        policy_loss, means = self._policy_loss(data, log_prob, mask, factor)
        metrics: dict[str, Any] = Metric.from_dict(means, aggregation=AggregationType.MEAN)
        sums: dict[str, Any] = {"actor/pg_loss": policy_loss}
        loss = policy_loss
        if (entropy := model_output.get("entropy")) is not None:
            sums["actor/entropy_loss"] = self._aggregated(no_padding_2_padding(entropy, data) * factor, mask)
            loss = loss - config.entropy_coeff * sums["actor/entropy_loss"]
        if config.use_kl_loss:
            divergence = _kl_penalty(log_prob, data["ref_log_prob"], kl_penalty=config.kl_loss_type)
            sums["kl_loss"] = self._aggregated(divergence * factor, mask)
            loss = loss + config.kl_loss_coef * sums["kl_loss"]
        totals: dict[str, Any] = {name: float(value.detach()) for name, value in sums.items()}
        return loss, metrics | Metric.from_dict(totals, aggregation=AggregationType.SUM)

    def _aggregated(self, losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        config = self.config
        return agg_loss(loss_mat=losses, loss_mask=mask, loss_agg_mode=config.loss_agg_mode, **config.global_batch_info)

    def _policy_loss(self, data: TensorDict, log_prob: torch.Tensor, mask: torch.Tensor, factor: torch.Tensor) -> Loss:
        config = self.config
        mode = config.policy_loss.loss_mode
        if mode == "bypass_mode":
            return self._bypass_loss(data, log_prob, mask, factor)
        loss, metrics = _policy_loss_fn(mode)(
            old_log_prob=data["old_log_probs"],
            log_prob=log_prob,
            advantages=data["advantages"],
            response_mask=mask,
            loss_agg_mode=config.loss_agg_mode,
            config=config,
            rollout_is_weights=data.get("rollout_is_weights", 1.0) * factor,
        )
        if mode == "geo_mean":  # verl takes the mean over the rows of the micro-batch, not over those of the mini-batch
            loss = loss * len(mask) * data["dp_size"] / data["global_batch_size"]
        return loss, metrics

    def _bypass_loss(self, data: TensorDict, log_prob: torch.Tensor, mask: torch.Tensor, factor: torch.Tensor) -> Loss:
        """verl's `bypass_mode` loss, which has no place for a factor: the sampler's logprobs are the old policy's."""
        config, wanted = self.config, self.config.policy_loss.rollout_correction
        with torch.no_grad():
            proto, accepted, measured = compute_rollout_correction_and_rejection_mask(
                old_log_prob=log_prob,
                # In a micro-batch that only fills a gap nothing is trained, and verl wants a token to measure.
                rollout_log_prob=torch.where(mask, data["old_log_probs"], log_prob),
                response_mask=mask if bool(mask.any()) else torch.ones_like(mask),
                rollout_is=wanted.rollout_is,
                rollout_is_threshold=wanted.rollout_is_threshold,
                rollout_rs=wanted.rollout_rs,
                rollout_rs_threshold=wanted.rollout_rs_threshold,
            )
        trained = mask & accepted
        self.kept.append(trained.sum())
        given = {
            "log_prob": log_prob,
            "advantages": data["advantages"],
            "response_mask": trained,
            "loss_agg_mode": config.loss_agg_mode,
            "config": config,
        }
        if wanted.loss_type == "reinforce":
            corrected = factor if proto is None else factor * proto.batch["rollout_is_weights"]
            loss, metrics = compute_policy_loss_reinforce(
                rollout_log_prob=data["old_log_probs"], rollout_is_weights=corrected, **given
            )
        else:  # the ratio corrects already
            loss, metrics = _policy_loss_fn("vanilla")(
                old_log_prob=data["old_log_probs"], rollout_is_weights=factor, **given
            )
        return loss, metrics | measured
