"""The numbers of one update, checked: Relight's names for the usual ones, verl's own for all others.

What is given twice, under both names, is an error. Torch-free; `trainer.py` hands the result to verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relight.errors import ConfigError
from relight.types.ineffective_keys import check_effects
from relight.types.verl_keys import PLAN_KEYS, flatten_verl_keys, names_correction

LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

LossSequence = Literal["rollout", "row"]
"""What the `seq-mean` modes take for a sequence: all rows of a rollout, or each row, as verl does."""

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

OPTIMIZER_STEPS = "optimizer_steps"
"""Metric of an update: optimizer steps that were made."""
NONFINITE_STEPS = "nonfinite_steps"
"""Those that verl skipped, because the gradient was not finite."""
REJECTED_STEPS = "rejected_steps"
"""Those left out, because every token of the mini-batch was rejected."""
STEP_COUNTS = (OPTIMIZER_STEPS, NONFINITE_STEPS, REJECTED_STEPS)

_MINI_BATCH = "actor.ppo_mini_batch_size"
_NORMALISE = "algorithm.norm_adv_by_std_in_grpo"
_NORMALISING = ("grpo", "grpo_vectorized", "grpo_passk")


class Hyperparameters(BaseModel):
    """One update's numbers. Defaults are verl's, where it has one that makes sense without its own launcher."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=1e-6, ge=0)
    """0 at the first step of a warm-up."""
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over the rows."""
    mini_batch_size: int | None = Field(default=None, ge=1)
    """Rollouts (not rows) an optimizer step; the batch is cut into parts of about so many, of whole groups."""
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
    """Deal the groups into mini-batches anew in each pass, by the seed."""
    clip_ratio: float = Field(default=0.2, gt=0)
    clip_ratio_low: float | None = Field(default=None, gt=0)
    """None: `clip_ratio`."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """None: `clip_ratio`."""
    entropy_coeff: float = 0.0
    loss_agg_mode: LossAggregation = "seq-mean-token-mean"
    sequence: LossSequence = "rollout"
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


def trainer_numbers(
    algorithm: BaseModel, temperature: float, verl: Mapping[str, Any], group_size: int, learning_rate: float
) -> dict[str, Any]:
    """The trainer's hyper-parameters of a step, from a run file's `algorithm`, `sampling.temperature` and `verl`.

    Raises:
        ConfigError: a key of verl's is at fault.
    """
    flat = flatten_verl_keys(verl)
    planned = {key: flat.pop(key) for key in PLAN_KEYS if key in flat}
    numbers = algorithm.model_dump(exclude={"name", "level"}, exclude_none=True)
    if (tasks := planned.get(_MINI_BATCH)) is not None:
        if (parts := numbers.get("mini_batches")) is not None:
            raise ConfigError(f"verl.{_MINI_BATCH}: {tasks} beside `algorithm.mini_batches: {parts}`: give one of them")
        numbers["mini_batch_size"] = tasks * group_size
    return {**numbers, "learning_rate": learning_rate, "temperature": temperature, "verl": flat}


def estimator_options(name: str, verl: Mapping[str, Any]) -> dict[str, Any]:
    """The `verl:` keys of an advantage estimator.

    Raises:
        ConfigError: the estimator ignores a key.
    """
    value = flatten_verl_keys(verl).get(_NORMALISE)
    if value is None:
        return {}
    if name not in _NORMALISING:
        raise ConfigError(f"verl.{_NORMALISE}: {value} would do nothing to `algorithm.name: {name}`: leave it out")
    return {_NORMALISE.rpartition(".")[2]: value}


def corrects(numbers: Mapping[str, Any]) -> bool:
    """Whether a plan, or a run file, corrects the mismatch between sampler and trainer, under whichever name."""
    own = (numbers.get("algorithm") or {}).get("rollout_correction")
    return bool(own) or names_correction(numbers.get("verl") or {})


def parse_hyperparameters(data: Mapping[str, Any]) -> Hyperparameters:
    """Check one update's numbers and fold in those that came under verl's names.

    Raises:
        ConfigError: naming the key at fault.
    """
    values = dict(data)
    flat = flatten_verl_keys(values.pop("verl", {}))
    correction = flatten_verl_keys({"algorithm.rollout_correction": values.get("rollout_correction", {})})
    for key in list(flat):
        if key in PLAN_KEYS:
            raise ConfigError(f"verl.{key}: the trainer gets what is computed from this key, not the key")
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
    check_effects(numbers)
    return numbers
