"""Advantages by verl's estimators, on one entry per rollout.

The reward of a rollout is one number, however many rows the rollout trains with, so each estimator sees a batch of
one-token responses. What it says of a rollout then holds for all its rows. GAE, which needs a critic and a rollout's
own tokens, is not offered here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from relight.errors import ConfigError

_NORMALISE = "norm_adv_by_std_in_grpo"
_OPTIONS: dict[str, frozenset[str]] = {
    "grpo": frozenset({_NORMALISE}),
    "grpo_no_std": frozenset(),
    "grpo_vectorized": frozenset({_NORMALISE}),
    "grpo_passk": frozenset({_NORMALISE}),
    "gpg": frozenset({"f_norm"}),
    "rloo": frozenset(),
    "rloo_vectorized": frozenset(),
    "reinforce_plus_plus": frozenset(),
    "reinforce_plus_plus_baseline": frozenset(),
    "opo": frozenset({"lengths"}),
    "remax": frozenset({"baselines"}),
}
_REQUIRED = {"opo": "lengths", "remax": "baselines"}
_NEEDS_MORE = {
    "gae": "it needs a critic, which is not trained here",
    "gdpo": "it needs several rewards a rollout",
    "optimal_token_baseline": "it works on single tokens",
    "tir_optimal_token_baseline": "it works on single tokens",
}


def compute_advantages(
    estimator: str, rewards: Sequence[float], groups: Sequence[str], options: Mapping[str, Any] | None = None
) -> list[float]:
    """The advantage of each rollout.

    Args:
        estimator: verl's name; `grpo_no_std` is `grpo` without division by the group's standard deviation.
        rewards: one of each rollout.
        groups: whose samples are compared with each other, one name of each rollout.
        options: `norm_adv_by_std_in_grpo` (grpo and its kin), `f_norm` (gpg), `lengths` (opo: trained tokens of each
            rollout), `baselines` (remax: the greedy rollout's reward, for each rollout).

    Raises:
        ConfigError: the estimator is unknown, unsupported, or an option is missing or would be ignored.
    """
    given = dict(options or {})
    _check(estimator, given, len(rewards), len(groups))
    lengths = given.pop("lengths", None)
    mask = _mask(lengths, len(rewards))
    scores = torch.zeros_like(mask)
    scores[:, 0] = torch.tensor(rewards, dtype=torch.float32)
    arguments = _arguments(estimator, given)
    compute = get_adv_estimator_fn("grpo" if estimator == "grpo_no_std" else estimator)
    advantages, _ = compute(
        token_level_rewards=scores, response_mask=mask, index=np.array(groups, dtype=object), **arguments
    )
    return advantages[:, 0].tolist()


def _arguments(estimator: str, given: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"config": AlgoConfig(**{key: given[key] for key in given if key == _NORMALISE})}
    if estimator == "grpo_no_std":
        arguments[_NORMALISE] = False
    elif _NORMALISE in given and estimator != "grpo_passk":  # which reads it from its config alone
        arguments[_NORMALISE] = given[_NORMALISE]
    if "f_norm" in given:
        arguments["f_norm"] = given["f_norm"]
    if "baselines" in given:
        arguments["reward_baselines"] = torch.tensor(given["baselines"], dtype=torch.float32)
    return arguments


def _mask(lengths: Sequence[int] | None, rollouts: int) -> torch.Tensor:
    if lengths is None:
        return torch.ones(rollouts, 1)
    positions = torch.arange(max(lengths)).unsqueeze(0)
    return (positions < torch.tensor(lengths).unsqueeze(1)).float()


def _check(estimator: str, given: Mapping[str, Any], rewards: int, groups: int) -> None:
    key = "algorithm.name"
    if reason := _NEEDS_MORE.get(estimator):
        raise ConfigError(f"{key}: `{estimator}` is not supported: {reason}; allowed: {', '.join(sorted(_OPTIONS))}")
    allowed = _OPTIONS.get(estimator)
    if allowed is None:
        raise ConfigError(f"{key}: `{estimator}` is unknown; allowed: {', '.join(sorted(_OPTIONS))}")
    if ignored := sorted(set(given) - allowed):
        raise ConfigError(f"{key}: `{estimator}` would ignore the option `{ignored[0]}`")
    if (required := _REQUIRED.get(estimator)) and len(given.get(required, ())) != rewards:
        raise ConfigError(f"{key}: `{estimator}` needs `{required}`, one for each rollout")
    if rewards != groups:
        raise ConfigError(f"{rewards} rewards, but {groups} groups: one of each for each rollout")
