"""Refuses keys of an update that would have no effect, or fail, together with the others, before anything starts.

Which loss reads which key, and what verl takes for a threshold, is verl 0.9.1's; a test compares both with its sources.
Torch-free.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from relight.errors import ConfigError
from relight.types.verl_values import ARGUMENTS, WITHOUT_BETAS, value_faults

if TYPE_CHECKING:
    from relight.types.hyperparameters import Hyperparameters

CLIP = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")
REINFORCE = "bypass_mode/reinforce"
PPO_CLIP = "bypass_mode/ppo_clip"
READ_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CLIP, ("vanilla", PPO_CLIP, "dppo_tv", "dppo_kl", "gspo", "clip_cov", "geo_mean", "cispo")),
    "actor.clip_ratio_c": ("vanilla", PPO_CLIP, "dppo_tv", "dppo_kl"),
    "actor.tau_pos": ("sapo",),
    "actor.tau_neg": ("sapo",),
    "actor.policy_loss.clip_cov_ratio": ("clip_cov",),
    "actor.policy_loss.clip_cov_lb": ("clip_cov",),
    "actor.policy_loss.clip_cov_ub": ("clip_cov",),
    "actor.policy_loss.kl_cov_ratio": ("kl_cov",),
    "actor.policy_loss.ppo_kl_coef": ("kl_cov",),
    "actor.policy_loss.dro_beta": ("dro",),
}
"""Keys of the policy losses, and the losses that read them."""

OWN_AGGREGATION = ("geo_mean", "sapo")
"""Losses that always take the mean over sequences of the mean over tokens."""

BOUNDS: dict[str, tuple[float, float]] = {
    "actor.clip_ratio_c": (1.0, math.inf),
    "actor.tau_pos": (0.0, math.inf),
    "actor.tau_neg": (0.0, math.inf),
    "actor.loss_scale_factor": (0.0, math.inf),
    "actor.policy_loss.clip_cov_ratio": (0.0, 1.0),
    "actor.policy_loss.kl_cov_ratio": (0.0, 1.0),
    "actor.policy_loss.dro_beta": (0.0, math.inf),
}
"""These keys must be more than the first number and at most the second."""

REJECTIONS = (
    *(f"token_{k}" for k in ("k1", "k2", "k3")),
    *(f"seq_{how}_{k}" for how in ("sum", "mean") for k in ("k1", "k2", "k3")),
    *(f"seq_max_{k}" for k in ("k2", "k3")),
)
"""Allowed values of `rollout_rs`."""

ONLY_BESIDE: dict[str, tuple[str, Any]] = {
    "model.fused_kernel_options": ("model.use_fused_kernels", True),
    "actor.fsdp_config.entropy_from_logits_chunk_size": ("actor.fsdp_config.entropy_from_logits_with_chunking", True),
    "actor.fsdp_config.pad_to_length_bucket": ("actor.fsdp_config.pad_to_length", True),
    "actor.fsdp_config.use_orig_params": ("actor.fsdp_config.strategy", "fsdp"),
    "actor.fsdp_config.offload_policy": ("actor.fsdp_config.strategy", "fsdp2"),
}
"""Keys of verl's that are read only where another one has this value."""

_USUAL = {"actor.fsdp_config.strategy": "fsdp2"}
_OPTIMIZER = "actor.optim.optimizer"
_IMPLEMENTATION = "actor.optim.optimizer_impl"
_OVERRIDE = "actor.optim.override_optimizer_config"
SET_EACH_STEP = {
    "lr": "algorithm.learning_rate",
    "weight_decay": "algorithm.weight_decay",
    "betas": "verl.actor.optim.betas",
}
"""Optimizer settings that are set before each update, and by which key."""

_CORRECTION = "algorithm.rollout_correction"


def check_effects(numbers: Hyperparameters) -> None:
    """Refuse the first key that would have no effect or fail.

    Raises:
        ConfigError: naming key, value and what to write instead.
    """
    keys = numbers.verl
    for fault in (
        *_loss_faults(numbers),
        *_batch_faults(numbers),
        *value_faults(keys),
        *_startup_faults(keys),
        *_optimizer_faults(numbers),
        *_correction_faults(numbers.rollout_correction),
    ):
        raise ConfigError(fault)


def loss_of(numbers: Hyperparameters) -> str:
    """The policy loss that is computed; in bypass mode with its type."""
    if not numbers.rollout_correction.get("bypass_mode"):
        return numbers.loss_mode
    return REINFORCE if numbers.rollout_correction.get("loss_type") == "reinforce" else PPO_CLIP


def _loss_faults(numbers: Hyperparameters) -> Iterator[str]:
    loss = loss_of(numbers)
    if loss.startswith("bypass_mode") and numbers.loss_mode != "vanilla":
        yield (
            f"algorithm.loss_mode: `{numbers.loss_mode}` would do nothing beside `{_CORRECTION}.bypass_mode`, whose "
            "`loss_type` decides: leave one of them out"
        )
    if loss in OWN_AGGREGATION and numbers.loss_agg_mode != "seq-mean-token-mean":
        yield (
            f"algorithm.loss_agg_mode: `{numbers.loss_agg_mode}` would do nothing to `loss_mode: {loss}`, which takes "
            "the mean over sequences of the mean over tokens: write `seq-mean-token-mean`"
        )
    if numbers.clip_ratio_low and numbers.clip_ratio_high and numbers.clip_ratio != _default(numbers, "clip_ratio"):
        yield (
            f"algorithm.clip_ratio: {numbers.clip_ratio!r} would do nothing beside `clip_ratio_low` and "
            "`clip_ratio_high`: leave it out"
        )
    for key, value in _given(numbers):
        if loss not in READ_BY.get(key, (loss,)):
            yield f"{_named(key)}: {value!r} would do nothing to the policy loss `{loss}`: leave it out"
        least, most = BOUNDS.get(key, (-math.inf, math.inf))
        if key in BOUNDS and not least < value <= most:
            upper = f" and at most {most:g}" if math.isfinite(most) else ""
            yield f"{_named(key)}: {value!r} must be more than {least:g}{upper}"
    if loss == "dro" and "actor.policy_loss.dro_beta" not in numbers.verl:
        yield "algorithm.loss_mode: `dro` needs `verl.actor.policy_loss.dro_beta`"
    if "actor.loss_scale_factor" in numbers.verl and numbers.loss_agg_mode != "seq-mean-token-sum-norm":
        yield "verl.actor.loss_scale_factor would do nothing without `algorithm.loss_agg_mode: seq-mean-token-sum-norm`"
    lower, upper = (
        numbers.verl.get(f"actor.policy_loss.clip_cov_{end}", usual) for end, usual in (("lb", 1), ("ub", 5))
    )
    if lower >= upper:
        yield f"verl.actor.policy_loss.clip_cov_lb: {lower!r} must be less than `clip_cov_ub`, {upper!r}"


def _startup_faults(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, (other, wanted) in ONLY_BESIDE.items():
        if key in keys and keys.get(other, _USUAL.get(other, False)) != wanted:
            shown = str(wanted).lower()
            yield f"verl.{key}: {keys[key]!r} would do nothing without `verl.{other}: {shown}`: leave it out"


def _optimizer_faults(numbers: Hyperparameters) -> Iterator[str]:
    optimizer = numbers.verl.get(_OPTIMIZER, "AdamW")
    if "betas" in numbers.model_fields_set and optimizer in WITHOUT_BETAS:
        yield f"verl.actor.optim.betas: {list(numbers.betas)} would do nothing to `{optimizer}`: leave it out"
    if not all(0 <= beta < 1 for beta in numbers.betas):
        yield f"verl.actor.optim.betas: {list(numbers.betas)} must both be 0 or more and less than 1"
    for name, value in numbers.verl.get(_OVERRIDE, {}).items():
        known = ARGUMENTS.get(optimizer) if numbers.verl.get(_IMPLEMENTATION, "torch.optim") == "torch.optim" else None
        if name in SET_EACH_STEP:
            yield f"verl.{_OVERRIDE}.{name}: {value!r} would do nothing: `{SET_EACH_STEP[name]}` decides"
        elif known is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(f'`{one}`' for one in known)}"
            yield f"verl.{_OVERRIDE}.{name}: `{optimizer}` has no such argument; {hint}"


def _given(numbers: Hyperparameters) -> Iterator[tuple[str, Any]]:
    """Keys of the policy loss that differ from their defaults."""
    for key in CLIP:
        if (value := getattr(numbers, key)) != _default(numbers, key):
            yield key, value
    yield from numbers.verl.items()


def _default(numbers: Hyperparameters, key: str) -> Any:
    return type(numbers).model_fields[key].default


def _named(key: str) -> str:
    return f"algorithm.{key}" if key in CLIP else f"verl.{key}"


def _batch_faults(numbers: Hyperparameters) -> Iterator[str]:
    given = numbers.model_fields_set
    if not numbers.use_kl_loss:
        for name in sorted(given & {"kl_loss_coef", "kl_loss_type"}):
            yield f"verl.actor.{name} would do nothing without `verl.actor.use_kl_loss: true`"
    if not numbers.use_dynamic_bsz and given & {"max_token_len", "infer_max_token_len"}:
        yield "verl.actor.ppo_max_token_len_per_gpu would do nothing without `verl.actor.use_dynamic_bsz: true`"
    if numbers.use_dynamic_bsz:
        for name in sorted(given & {"micro_batch_size", "infer_micro_batch_size"}):
            key = f"verl.actor.ppo_{name}_per_gpu"
            yield f"{key} would do nothing beside `verl.actor.use_dynamic_bsz: true`: leave one of them out"


def _correction_faults(keys: Mapping[str, Any]) -> Iterator[str]:
    """Faults in the keys of verl's correction of the mismatch between sampler and trainer."""
    bypass, level = keys.get("bypass_mode", False), keys.get("rollout_is")
    kind = keys.get("loss_type", "ppo_clip")
    if "loss_type" in keys and not bypass:
        yield f"{_CORRECTION}.loss_type: {kind!r} would do nothing without `bypass_mode: true`"
    if kind not in ("ppo_clip", "reinforce"):
        yield f"{_CORRECTION}.loss_type: {kind!r} must be `ppo_clip` or `reinforce`"
    if level not in (None, "token", "sequence"):
        yield f"{_CORRECTION}.rollout_is: {level!r} must be `token`, `sequence` or null"
    if level and bypass and kind == "ppo_clip":
        yield f"{_CORRECTION}.rollout_is: {level!r} would do nothing in bypass mode with `loss_type: ppo_clip`"
    normalised = keys.get("rollout_is_batch_normalize", False)
    if normalised and bypass:
        yield f"{_CORRECTION}.rollout_is_batch_normalize: in bypass mode it would be by micro-batch; leave it out"
    for name in ("rollout_is_threshold", "rollout_is_batch_normalize"):
        if name in keys and not level:
            yield f"{_CORRECTION}.{name}: {keys[name]!r} would do nothing without `rollout_is`"
    if level and not is_threshold(spec := keys.get("rollout_is_threshold", 2.0)):
        yield f"{_CORRECTION}.rollout_is_threshold: {spec!r} must be a positive number, or two as in `0.5_2.0`"
    yield from _rejection_faults(keys)


def _rejection_faults(keys: Mapping[str, Any]) -> Iterator[str]:
    wanted, given = keys.get("rollout_rs"), keys.get("rollout_rs_threshold")
    if wanted is None:
        if given is not None:
            yield f"{_CORRECTION}.rollout_rs_threshold: {given!r} would do nothing without `rollout_rs`"
        return
    options = list(dict.fromkeys(option for part in wanted.split(",") if (option := part.strip())))
    if not options or set(options) - set(REJECTIONS):
        yield f"{_CORRECTION}.rollout_rs: {wanted!r} must be of {', '.join(REJECTIONS)}, with commas between several"
        return
    specs = [part.strip() for part in str(given).split(",") if part.strip()] if given is not None else []
    if len(specs) not in (1, len(options)):
        yield f"{_CORRECTION}.rollout_rs_threshold: {given!r} must be one threshold, or one for each of `rollout_rs`"
        return
    for option, spec in zip(options, specs * len(options) if len(specs) == 1 else specs, strict=True):
        by_ratio = option.endswith("k1")  # one number is the upper bound then, and its reciprocal the lower one
        if not is_threshold(spec, pair=by_ratio) or (by_ratio and "_" not in spec and float(spec) < 1):
            shape = "1 or more, or two numbers as in `0.5_2.0`," if by_ratio else "a positive number"
            yield f"{_CORRECTION}.rollout_rs_threshold: {spec!r} must be {shape} for `{option}`"


def is_threshold(spec: Any, *, pair: bool = True) -> bool:
    """Whether verl accepts it as a bound, or as a lower and an upper bound."""
    parts = str(spec).split("_")  # of which Python would take a third for digits
    try:
        bounds = [float(part) for part in parts]
    except ValueError:
        return False
    return len(bounds) <= (2 if pair else 1) and bounds[0] > 0 and bounds[-1] >= bounds[0]


def not_finite(value: Any, key: str) -> Iterator[tuple[str, float]]:
    """Keys and values of the numbers in it, however deep, that are not finite."""
    if isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, Any]", value).items():
            yield from not_finite(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(cast("Sequence[Any]", value)):
            yield from not_finite(inner, f"{key}.{i}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, value
