"""Names in verl's keys that verl looks up only when the trainer process starts: optimizers, data types, kernels.

They are those of verl 0.9.1, and of the packages of optimizers that it names; a test compares them with what is
installed. Torch-free.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

_SIZES = ("", "8bit", "32bit")
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "torch.optim": (
        *("Adafactor", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD"),
    ),
    "torchao.optim": ("_AdamW", "Adam4bit", "Adam8bit", "AdamFp8", "AdamW4bit", "AdamW8bit", "AdamWFp8"),
    "bitsandbytes.optim": tuple(
        name + size
        for name in ("Adam", "AdamW", "LAMB", "Lion", "PagedAdam", "PagedAdamW", "PagedLion")
        for size in _SIZES
    ),
}
"""By `optimizer_impl`: those that take every parameter of a model, a learning rate and a weight decay."""
_COMMON = ("foreach", "maximize", "differentiable")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "Adafactor": ("beta2_decay", "eps", "d", "foreach", "maximize"),
    "Adadelta": ("rho", "eps", "capturable", *_COMMON),
    "Adagrad": ("lr_decay", "initial_accumulator_value", "eps", "fused", *_COMMON),
    "Adam": ("eps", "amsgrad", "capturable", "fused", "decoupled_weight_decay", *_COMMON),
    "AdamW": ("eps", "amsgrad", "capturable", "fused", *_COMMON),
    "Adamax": ("eps", "capturable", *_COMMON),
    "ASGD": ("lambd", "alpha", "t0", "capturable", *_COMMON),
    "NAdam": ("eps", "momentum_decay", "decoupled_weight_decay", "capturable", *_COMMON),
    "RAdam": ("eps", "decoupled_weight_decay", "capturable", *_COMMON),
    "RMSprop": ("alpha", "eps", "momentum", "centered", "capturable", *_COMMON),
    "SGD": ("momentum", "dampening", "nesterov", "fused", *_COMMON),
}
"""What `override_optimizer_config` may give an optimizer of `torch.optim`: its arguments but those that are set before
each update."""
WITHOUT_BETAS = ("Adafactor", "Adadelta", "Adagrad", "ASGD", "RMSprop", "SGD")

DTYPES = ("fp32", "float32", "32", "bf16", "bfloat16", "fp16", "float16", "16")
KERNELS = ("torch", "triton", "liger")
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
"""Of transformers; beside them a kernel of the hub, `owner/name`."""

_IMPLEMENTATION = "actor.optim.optimizer_impl"
_OPTIMIZER = "actor.optim.optimizer"
_PRECISION = "actor.fsdp_config.mixed_precision"
_WRAP = "actor.fsdp_config.wrap_policy"
_FUSED = "model.fused_kernel_options"
_OVERRIDE = "model.override_config"
_STRATEGY = "actor.fsdp_config.strategy"

VALUES: dict[str, tuple[str, ...]] = {
    _STRATEGY: ("fsdp", "fsdp2"),
    "actor.fsdp_config.model_dtype": DTYPES,
    _IMPLEMENTATION: tuple(OPTIMIZERS),
}
NAMES: dict[str, tuple[str, ...]] = {
    _PRECISION: ("param_dtype", "reduce_dtype", "buffer_dtype"),
    _WRAP: ("transformer_layer_cls_to_wrap", "min_num_params", "disable"),
    _FUSED: ("impl_backend",),
}
"""Allowed names in keys that have several."""
ONLY_FSDP = ("buffer_dtype", "min_num_params", "disable")
"""Of these, what `fsdp2` does not read."""


def value_faults(keys: Mapping[str, Any]) -> Iterator[str]:
    """Values that verl would refuse or ignore when the trainer starts."""
    for key, allowed in VALUES.items():
        if key in keys:
            yield from _unless(key, keys[key], allowed)
    implementation = keys.get(_IMPLEMENTATION, "torch.optim")
    if implementation in OPTIMIZERS:
        optimizers = OPTIMIZERS[implementation]
        yield from _unless(_OPTIMIZER, keys.get(_OPTIMIZER, "AdamW"), optimizers, f" of `{implementation}`")
    yield from _nested_faults(keys)
    attention = keys.get(_OVERRIDE, {}).get("attn_implementation")
    if attention is not None and "/" not in str(attention):
        yield from _unless(f"{_OVERRIDE}.attn_implementation", attention, ATTENTIONS, ", or a kernel of the hub")
    if keys.get("model.use_fused_kernels") and _FUSED not in keys:
        yield f"verl.model.use_fused_kernels needs `verl.{_FUSED}.impl_backend`: {_listed(KERNELS)}"


def _nested_faults(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, names in NAMES.items():
        for name, value in keys.get(key, {}).items():
            if name not in names:
                yield f"verl.{key}.{name}: verl has no such key there; it has {_listed(names)}"
            elif name in ONLY_FSDP and keys.get(_STRATEGY, "fsdp2") != "fsdp":
                yield f"verl.{key}.{name}: {value!r} would do nothing without `verl.{_STRATEGY}: fsdp`: leave it out"
            elif key == _PRECISION:
                yield from _unless(f"{key}.{name}", value, DTYPES)
            elif key == _FUSED:
                yield from _unless(f"{key}.{name}", value, KERNELS)


def _unless(key: str, value: Any, allowed: tuple[str, ...], beside: str = "") -> Iterator[str]:
    if str(value) not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        yield f"verl.{key}: {value!r} must be {_listed(allowed)}{beside}{hint}"


def _listed(names: tuple[str, ...]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} or {last}" if most else last
