"""The numbers of one update, checked: Relight's names for the usual ones, verl's own for all others.

What is given twice, under both names, is an error. Torch-free; `trainer.py` hands the result to verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relight.errors import ConfigError
from relight.types.verl_keys import flatten_verl_keys

LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

PolicyLoss = Literal[
    "vanilla", "gspo", "gpg", "cispo", "sapo", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "dro"
]
"""verl's policy losses; its `bypass_mode` is chosen by `rollout_correction.bypass_mode`."""

_SAME_AS_VERL = {
    "actor.optim.lr": "learning_rate",
    "actor.optim.weight_decay": "weight_decay",
    "actor.optim.betas": "betas",
    "actor.optim.clip_grad": "grad_clip",
    "actor.grad_clip": "grad_clip",
    "actor.ppo_epochs": "ppo_epochs",
    "actor.ppo_mini_batch_size": "mini_batch_size",
    "actor.ppo_micro_batch_size_per_gpu": "micro_batch_size",
    "actor.ppo_infer_micro_batch_size_per_gpu": "infer_micro_batch_size",
    "actor.shuffle": "shuffle",
    "actor.use_dynamic_bsz": "use_dynamic_bsz",
    "actor.ppo_max_token_len_per_gpu": "max_token_len",
    "actor.ppo_infer_max_token_len_per_gpu": "infer_max_token_len",
    "actor.clip_ratio": "clip_ratio",
    "actor.clip_ratio_low": "clip_ratio_low",
    "actor.clip_ratio_high": "clip_ratio_high",
    "actor.entropy_coeff": "entropy_coeff",
    "actor.loss_agg_mode": "loss_agg_mode",
    "actor.policy_loss.loss_mode": "loss_mode",
    "actor.use_kl_loss": "use_kl_loss",
    "actor.kl_loss_coef": "kl_loss_coef",
    "actor.kl_loss_type": "kl_loss_type",
}


class Hyperparameters(BaseModel):
    """One update's numbers. Defaults are verl's, where it has one that makes sense without its own launcher."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over the rows."""
    mini_batch_size: int | None = Field(default=None, ge=1)
    """Rollouts (not rows) an optimizer step; the batch is cut into equal parts of at most so many."""
    mini_batches: int | None = Field(default=None, ge=1)
    """Instead of `mini_batch_size`: optimizer steps a pass. Neither: one."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Rows a forward and backward pass; affects memory, not the result. None: 64 on a CPU, 8 on a GPU."""
    infer_micro_batch_size: int | None = Field(default=None, ge=1)
    """Rows a forward pass without gradients. None: twice `micro_batch_size`."""
    use_dynamic_bsz: bool = False
    """Cut micro-batches by `max_token_len` instead of by rows."""
    max_token_len: int = Field(default=16384, ge=1)
    infer_max_token_len: int = Field(default=16384, ge=1)
    shuffle: bool = False
    """Deal the rollouts into mini-batches anew in each pass, by the seed."""
    clip_ratio: float = Field(default=0.2, gt=0)
    clip_ratio_low: float | None = Field(default=None, gt=0)
    """None: `clip_ratio`."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """None: `clip_ratio`."""
    entropy_coeff: float = 0.0
    loss_agg_mode: LossAggregation = "seq-mean-token-mean"
    loss_mode: PolicyLoss = "vanilla"
    use_kl_loss: bool = False
    """Add the divergence from version 0, which is then kept in memory too."""
    kl_loss_coef: float = 0.001
    kl_loss_type: str = Field(default="low_var_kl", pattern=r"^(kl|k1|abs|mse|k2|low_var_kl|k3)\+?$")
    rollout_correction: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keys of verl's `algorithm.rollout_correction`; empty: none, the mismatch is only measured."""
    temperature: float = Field(default=1.0, gt=0)
    """What the rows were sampled at."""
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """verl's own keys, dotted."""


def trainer_numbers(algorithm: BaseModel, temperature: float, verl: Mapping[str, Any]) -> dict[str, Any]:
    """What the trainer is told of a run file's `algorithm`, `sampling.temperature` and `verl`."""
    numbers = algorithm.model_dump(exclude={"name", "level"}, exclude_none=True)
    return {**numbers, "temperature": temperature, "verl": dict(verl)}


def parse_hyperparameters(data: Mapping[str, Any]) -> Hyperparameters:
    """Check one update's numbers and fold in those that came under verl's names.

    Raises:
        ConfigError: naming the key at fault.
    """
    values = dict(data)
    flat = flatten_verl_keys(values.pop("verl", {}))
    correction = flatten_verl_keys({"algorithm.rollout_correction": values.get("rollout_correction", {})})
    for key in list(flat):
        name = "rollout_correction" if key.startswith("algorithm.") else _SAME_AS_VERL.get(key)
        if name == "rollout_correction":
            correction[key] = flat.pop(key)
        elif name is not None:
            if name in values:
                raise ConfigError(f"verl.{key} is the same thing as `algorithm.{name}`: set that alone")
            values[name] = flat.pop(key)
    values["rollout_correction"] = {key.rpartition(".")[2]: value for key, value in correction.items()}
    return _validated({**values, "verl": flat})


def _validated(values: dict[str, Any]) -> Hyperparameters:
    try:
        numbers = Hyperparameters.model_validate(values)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, f['loc']))}: {f['msg']} (given: {f['input']!r})" for f in error.errors()]
        raise ConfigError(f"hyper-parameters: {'; '.join(faults)}") from error
    if numbers.mini_batch_size and numbers.mini_batches:
        raise ConfigError("hyper-parameters: give `mini_batch_size` or `mini_batches`, not both")
    if numbers.loss_mode == "dro" and "actor.policy_loss.dro_beta" not in numbers.verl:
        raise ConfigError("hyper-parameters: `loss_mode: dro` needs `verl.actor.policy_loss.dro_beta`")
    return numbers
