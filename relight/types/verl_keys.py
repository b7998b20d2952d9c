"""The run file's `verl:` keys: which of verl's own settings Relight passes on, and to which part of verl.

Keys carry the names that they have in verl's configuration, nested or dotted: `actor.clip_ratio_c`,
`actor.optim.betas`, `actor.fsdp_config.param_offload`, `model.use_remove_padding`,
`algorithm.rollout_correction.rollout_is`; the prefix `actor_rollout_ref.` may be left out. A key that is not listed
here would have no effect, so it is an error. Torch-free: a run file is checked before any process is started.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, cast

from relight.errors import ConfigError
from relight.types.host_keys import REASONS, check_fields, check_plain, refused

_FLOAT = (int, float)
_BETAS = (list, tuple)
_CORRECTION = "algorithm.rollout_correction."

LOSS_KEYS: dict[str, tuple[type, ...]] = {
    "actor.clip_ratio": _FLOAT,
    "actor.clip_ratio_low": _FLOAT,
    "actor.clip_ratio_high": _FLOAT,
    "actor.clip_ratio_c": _FLOAT,
    "actor.loss_agg_mode": (str,),
    "actor.loss_scale_factor": (int,),
    "actor.entropy_coeff": _FLOAT,
    "actor.tau_pos": _FLOAT,
    "actor.tau_neg": _FLOAT,
    "actor.calculate_entropy": (bool,),
    "actor.use_kl_loss": (bool,),
    "actor.kl_loss_coef": _FLOAT,
    "actor.kl_loss_type": (str,),
    "actor.policy_loss.loss_mode": (str,),
    "actor.policy_loss.clip_cov_ratio": _FLOAT,
    "actor.policy_loss.clip_cov_lb": _FLOAT,
    "actor.policy_loss.clip_cov_ub": _FLOAT,
    "actor.policy_loss.kl_cov_ratio": _FLOAT,
    "actor.policy_loss.ppo_kl_coef": _FLOAT,
    "actor.policy_loss.dro_beta": _FLOAT,
}
"""Read for each update: fields of verl's actor configuration, which its losses read."""

BATCH_KEYS: dict[str, tuple[type, ...]] = {
    "actor.ppo_epochs": (int,),
    "actor.shuffle": (bool,),
    "actor.ppo_micro_batch_size_per_gpu": (int,),
    "actor.ppo_infer_micro_batch_size_per_gpu": (int,),
    "actor.use_dynamic_bsz": (bool,),
    "actor.ppo_max_token_len_per_gpu": (int,),
    "actor.ppo_infer_max_token_len_per_gpu": (int,),
    "actor.grad_clip": _FLOAT,
    "actor.optim.lr": _FLOAT,
    "actor.optim.weight_decay": _FLOAT,
    "actor.optim.clip_grad": _FLOAT,
    "actor.optim.betas": _BETAS,
}
"""Read for each update: how the batch is divided, and the optimizer's hyper-parameters."""

CORRECTION_KEYS: dict[str, tuple[type, ...]] = {
    _CORRECTION + "rollout_is": (str, type(None)),
    _CORRECTION + "rollout_is_threshold": (int, float, str),
    _CORRECTION + "rollout_is_batch_normalize": (bool,),
    _CORRECTION + "rollout_rs": (str, type(None)),
    _CORRECTION + "rollout_rs_threshold": (int, float, str, type(None)),
    _CORRECTION + "bypass_mode": (bool,),
    _CORRECTION + "loss_type": (str,),
}
"""Read for each update: verl's correction of the mismatch between sampler and trainer."""

MODEL_KEYS: dict[str, tuple[type, ...]] = {
    "model.use_remove_padding": (bool,),
    "model.enable_gradient_checkpointing": (bool,),
    "model.enable_activation_offload": (bool,),
    "model.trust_remote_code": (bool,),
    "model.override_config": (dict,),
    "model.use_liger": (bool,),
    "model.use_fused_kernels": (bool,),
    "model.fused_kernel_options": (dict,),
}
"""Read when the trainer process starts: how the model is built."""

ENGINE_KEYS: dict[str, tuple[type, ...]] = {
    "actor.fsdp_config.strategy": (str,),
    "actor.fsdp_config.param_offload": (bool,),
    "actor.fsdp_config.optimizer_offload": (bool,),
    "actor.fsdp_config.offload_policy": (bool,),
    "actor.fsdp_config.reshard_after_forward": (bool,),
    "actor.fsdp_config.fsdp_size": (int,),
    "actor.fsdp_config.forward_prefetch": (bool,),
    "actor.fsdp_config.model_dtype": (str,),
    "actor.fsdp_config.mixed_precision": (dict,),
    "actor.fsdp_config.ulysses_sequence_parallel_size": (int,),
    "actor.fsdp_config.use_torch_compile": (bool,),
    "actor.fsdp_config.use_orig_params": (bool,),
    "actor.fsdp_config.entropy_from_logits_with_chunking": (bool,),
    "actor.fsdp_config.entropy_from_logits_chunk_size": (int,),
    "actor.fsdp_config.entropy_checkpointing": (bool,),
    "actor.fsdp_config.use_no_sync_for_gradient_accumulation": (bool,),
    "actor.fsdp_config.wrap_policy": (dict,),
    "actor.fsdp_config.full_determinism": (bool,),
    "actor.fsdp_config.pad_to_length": (bool,),
    "actor.fsdp_config.pad_to_length_bucket": (int,),
}
"""Read when the trainer process starts: verl's FSDP engine."""

OPTIMIZER_KEYS: dict[str, tuple[type, ...]] = {
    "actor.optim.optimizer": (str,),
    "actor.optim.optimizer_impl": (str,),
    "actor.optim.override_optimizer_config": (dict,),
}
"""Read when the trainer process starts: which optimizer is built."""

PLAN_KEYS: dict[str, tuple[type, ...]] = {
    "algorithm.norm_adv_by_std_in_grpo": (bool,),
    "actor.ppo_mini_batch_size": (int,),
    "actor.optim.lr_scheduler_type": (str,),
    "actor.optim.lr_warmup_steps": (int,),
    "actor.optim.lr_warmup_steps_ratio": _FLOAT,
    "actor.optim.total_training_steps": (int,),
    "actor.optim.min_lr_ratio": _FLOAT,
    "actor.optim.num_cycles": _FLOAT,
    "actor.optim.zero_indexed_step": (bool,),
}
"""Read when a step is planned and its advantages are computed; the trainer gets only the results."""

STARTUP_KEYS = {**MODEL_KEYS, **ENGINE_KEYS, **OPTIMIZER_KEYS}
KNOWN_KEYS = {**LOSS_KEYS, **BATCH_KEYS, **CORRECTION_KEYS, **PLAN_KEYS, **STARTUP_KEYS}

SETTING = "RELIGHT_GPU_VERL"
"""The GPU worker's own keys, which may be all that a trainer starts with."""
CODE_KEYS = frozenset({"model.trust_remote_code"})
"""Keys of verl's that may make a GPU host run other code."""
OVERRIDE = "model.override_config"
OVERRIDE_FIELDS = (
    *("attention_bias", "attention_dropout", "attn_implementation", "embd_pdrop", "hidden_dropout"),
    *("initializer_range", "max_position_embeddings", "mlp_bias", "output_router_logits", "resid_pdrop"),
    *("rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta", "router_aux_loss_coef", "sliding_window"),
    *("tie_word_embeddings", "use_cache", "use_sliding_window"),
)
ROPE = ("rope_parameters", "rope_scaling")
ROPE_FIELDS = (
    *("attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "low_freq_factor", "rope_theta"),
    *("original_max_position_embeddings", "rope_type", "type"),
)
"""Of the model's configuration, what a run file may change; other names there choose classes, files or kernels."""

_DECIDED_ELSEWHERE = {
    "actor.data_loader_seed": "the run file's `seed` decides",
    "actor.rollout_n": "the run file's `group_size` decides",
    "algorithm.adv_estimator": "the run file's `algorithm.name` decides",
}


def flatten_verl_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Check `verl:` keys and write them dotted, without `actor_rollout_ref.`.

    Raises:
        ConfigError: naming a key that is unknown, ill-typed, given twice or decided elsewhere in the run file.
    """
    flat: dict[str, Any] = {}
    for key, value in _dotted(keys, ""):
        name = key.removeprefix("actor_rollout_ref.")
        if name in flat:
            raise ConfigError(f"verl.{key}: given twice")
        _check(name, key, value)
        flat[name] = value
    return flat


def check_run_file_keys(flat: Mapping[str, Any]) -> None:
    """Refuse the first of the flat keys or values that a run file may not have.

    Raises:
        ConfigError: naming it.
    """
    for key, value in flat.items():
        shown = f"verl.{key}"
        if key in CODE_KEYS:
            raise refused(shown, REASONS["code"], SETTING)
        if key == OVERRIDE:
            ropes = {name: value[name] for name in ROPE if name in value}
            check_fields(shown, {**value, **dict.fromkeys(ropes)}, OVERRIDE_FIELDS, SETTING)
            for name, rope in ropes.items():
                check_fields(f"{shown}.{name}", rope or {}, ROPE_FIELDS, SETTING)
        elif isinstance(value, Mapping):
            for name, item in cast("Mapping[str, Any]", value).items():
                check_plain(f"{shown}.{name}", item, SETTING)
        elif isinstance(value, str) and key != "actor.optim.optimizer_impl":  # a module of a fixed set
            check_plain(shown, value, SETTING)


def require_startup_keys(keys: Mapping[str, Any]) -> None:
    """Check keys that hold for all runs of a GPU worker.

    Raises:
        ConfigError: naming one that is wrong, or that is not read when a trainer starts.
    """
    for key in flatten_verl_keys(keys):
        if key not in STARTUP_KEYS:
            raise ConfigError(f"verl.{key}: not read when a trainer starts: set it in the run file")


def merged_startup_keys(run_file: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a trainer starts with: keys of the run file, and the GPU worker's own.

    Raises:
        ConfigError: the run file may not set one, or both set the same.
    """
    given, ours = flatten_verl_keys(run_file), flatten_verl_keys(own)
    check_run_file_keys(given)
    if both := sorted(given.keys() & ours.keys()):
        raise ConfigError(f"verl.{both[0]}: {SETTING} of the GPU worker sets it too: leave it out")
    return startup_keys(given) | ours


def startup_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the flat keys that are fixed for the life of a trainer process."""
    return {key: value for key, value in flat.items() if key in STARTUP_KEYS}


def names_correction(keys: Mapping[str, Any]) -> bool:
    """Whether any of the keys, nested or dotted, is one of `algorithm.rollout_correction`. Checks nothing."""
    return any(name.startswith(_CORRECTION) for name, _ in _dotted(keys, ""))


def section(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The keys directly under `prefix`, without it."""
    start = f"{prefix}."
    tails = {key.removeprefix(start): value for key, value in flat.items() if key.startswith(start)}
    return {tail: value for tail, value in tails.items() if "." not in tail}


def _dotted(keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        name = f"{prefix}{key}"
        takes_a_dict = dict in KNOWN_KEYS.get(name.removeprefix("actor_rollout_ref."), ())
        if isinstance(value, Mapping) and not takes_a_dict:
            yield from _dotted(value, f"{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield name, value


def _check(name: str, key: str, value: Any) -> None:
    if reason := _DECIDED_ELSEWHERE.get(name):
        raise ConfigError(f"verl.{key} would be ignored: {reason}")
    types = KNOWN_KEYS.get(name)
    if types is None:
        near = difflib.get_close_matches(name, KNOWN_KEYS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "there are actor.*, model.* and algorithm.rollout_correction.*"
        raise ConfigError(f"verl.{key}: not a key of verl that has an effect here; {hint}")
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
        raise ConfigError(f"verl.{key}: {value!r} is not {wanted}")
