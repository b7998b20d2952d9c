"""The learning rate of a step: verl's schedules by verl's keys, a factor of `algorithm.learning_rate`.

It is worked out when a step is planned, and recorded with it. Torch-free; a test compares it with verl's schedulers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relight.errors import ConfigError

_PREFIX = "actor.optim."
_OF_COSINE = ("min_lr_ratio", "num_cycles", "zero_indexed_step")
KEYS = ("lr_scheduler_type", "lr_warmup_steps", "lr_warmup_steps_ratio", "total_training_steps", *_OF_COSINE)


def learning_rate_factor(verl: Mapping[str, Any], step: int, total_steps: int) -> float:
    """What the learning rate is multiplied by in a step (from 1), by flat `verl:` keys.

    As in verl a warm-up begins at 0: the first step of it moves nothing.
    """
    keys = _given(verl)
    total = keys.get("total_training_steps", total_steps)
    warmup = keys.get("lr_warmup_steps", -1)
    if warmup <= 0:
        warmup = int(keys.get("lr_warmup_steps_ratio", 0.0) * total)
    done = max(step, 1) - 1
    if keys.get("lr_scheduler_type", "constant") == "constant":
        return done / max(1, warmup) if done < warmup else 1.0
    if not keys.get("zero_indexed_step", True):
        done += 1
    if done < warmup:
        return done / max(1, warmup)
    least = keys.get("min_lr_ratio", 0.0)
    wave = math.cos(2 * math.pi * keys.get("num_cycles", 0.5) * (done - warmup) / max(1, total - warmup))
    return max(least, (1 - least) * 0.5 * wave + (1 + least) * 0.5)


def check_schedule(verl: Mapping[str, Any]) -> None:
    """Refuse what would do nothing or what verl would refuse.

    Raises:
        ConfigError: naming the key.
    """
    keys = _given(verl)
    kind = keys.get("lr_scheduler_type", "constant")
    if kind not in ("constant", "cosine"):
        raise ConfigError(f"verl.{_PREFIX}lr_scheduler_type: {kind!r} must be `constant` or `cosine`")
    for name in _OF_COSINE:
        if name in keys and kind == "constant":
            raise ConfigError(f"verl.{_PREFIX}{name} would do nothing without `lr_scheduler_type: cosine`")
    for name in ("min_lr_ratio", "lr_warmup_steps_ratio"):
        if not 0 <= keys.get(name, 0) <= 1:
            raise ConfigError(f"verl.{_PREFIX}{name}: {keys[name]!r} must be between 0 and 1")
    if keys.get("total_training_steps", 1) < 1:
        raise ConfigError(f"verl.{_PREFIX}total_training_steps: {keys['total_training_steps']!r} must be 1 or more")
    by_steps, by_ratio = keys.get("lr_warmup_steps", 0) > 0, "lr_warmup_steps_ratio" in keys
    if by_steps and by_ratio:
        raise ConfigError(f"verl.{_PREFIX}lr_warmup_steps_ratio would do nothing beside `lr_warmup_steps`")
    if "total_training_steps" in keys and kind == "constant" and not by_ratio:
        raise ConfigError(f"verl.{_PREFIX}total_training_steps would do nothing to a constant learning rate")


def _given(verl: Mapping[str, Any]) -> dict[str, Any]:
    return {name: verl[key] for name in KEYS if (key := f"{_PREFIX}{name}") in verl}
