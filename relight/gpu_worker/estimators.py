"""Advantages by verl's estimators, on one entry per rollout.

The reward of a rollout is one number for any number of training rows, so each estimator gets a batch of one-token
responses, and a rollout's advantage holds for all its rows. GAE, which needs a critic and a rollout's own tokens, is
not supported.
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
ESTIMATORS: dict[str, frozenset[str]] = {
    "grpo": frozenset({_NORMALISE}),
    "grpo_no_std": frozenset(),
    "grpo_vectorized": frozenset({_NORMALISE}),
    "grpo_passk": frozenset({_NORMALISE}),
    "gpg": frozenset(),
    "rloo": frozenset(),
    "rloo_vectorized": frozenset(),
    "reinforce_plus_plus": frozenset(),
    "reinforce_plus_plus_baseline": frozenset(),
    "opo": frozenset({"lengths"}),
}
"""The supported estimators and their options."""
_BY_BATCH = "reinforce_plus_plus"
"""The estimator that compares rollouts with all others, not with those of their group."""
_REQUIRED = {"opo": "lengths"}
_NEEDS_MORE = {
    "gae": "it needs a critic, which is not trained here",
    "gdpo": "it needs several rewards a rollout",
    "optimal_token_baseline": "it works on single tokens",
    "remax": "it needs a greedy rollout of each task, which steps don't have",
    "tir_optimal_token_baseline": "it works on single tokens",
}


def compute_advantages(
    estimator: str, rewards: Sequence[float], groups: Sequence[str], options: Mapping[str, Any] | None = None
) -> list[float]:
    """The advantage of each rollout; exactly 0 where all rewards of the group are equal.

    Args:
        estimator: verl's name; `grpo_no_std` is `grpo` without division by the group's standard deviation.
        rewards: one for each rollout.
        groups: the group of each rollout; rollouts of a group are compared with each other.
        options: `norm_adv_by_std_in_grpo` (grpo and variants), `lengths` (opo: trained tokens of each rollout).

    Raises:
        ConfigError: the estimator is unknown, unsupported, or an option is missing or would be ignored.
    """
    given = dict(options or {})
    _check(estimator, given, len(rewards), len(groups))
    lengths = given.pop("lengths", None)
    mask = _mask(lengths, len(rewards))
    scores = torch.zeros_like(mask)
    exact = torch.tensor(rewards, dtype=torch.float32)
    scores[:, 0] = exact
    arguments = _arguments(estimator, given)
    compute = get_adv_estimator_fn("grpo" if estimator == "grpo_no_std" else estimator)
    advantages, _ = compute(
        token_level_rewards=scores, response_mask=mask, index=np.array(groups, dtype=object), **arguments
    )
    flat = set[str]() if estimator == _BY_BATCH else _without_signal(exact.tolist(), groups)
    return [0.0 if group in flat else value for group, value in zip(groups, advantages[:, 0].tolist(), strict=True)]


def _without_signal(rewards: Sequence[float], groups: Sequence[str]) -> set[str]:
    """Groups of several equal rewards, which would get advantages by rounding: the mean of 0.7s is not 0.7."""
    members: dict[str, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        members.setdefault(group, []).append(reward)
    return {group for group, values in members.items() if len(values) > 1 and len(set(values)) == 1}


def _arguments(estimator: str, given: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"config": AlgoConfig(**{key: given[key] for key in given if key == _NORMALISE})}
    if estimator == "grpo_no_std":
        arguments[_NORMALISE] = False
    elif _NORMALISE in given and estimator != "grpo_passk":  # which reads it from its config alone
        arguments[_NORMALISE] = given[_NORMALISE]
    return arguments


def _mask(lengths: Sequence[int] | None, rollouts: int) -> torch.Tensor:
    if lengths is None:
        return torch.ones(rollouts, 1)
    positions = torch.arange(max(lengths)).unsqueeze(0)
    return (positions < torch.tensor(lengths).unsqueeze(1)).float()


def _check(estimator: str, given: Mapping[str, Any], rewards: int, groups: int) -> None:
    key = "algorithm.name"
    if reason := _NEEDS_MORE.get(estimator):
        raise ConfigError(f"{key}: `{estimator}` is not supported: {reason}; allowed: {', '.join(sorted(ESTIMATORS))}")
    allowed = ESTIMATORS.get(estimator)
    if allowed is None:
        raise ConfigError(f"{key}: `{estimator}` is unknown; allowed: {', '.join(sorted(ESTIMATORS))}")
    if ignored := sorted(set(given) - allowed):
        raise ConfigError(f"{key}: `{estimator}` would ignore the option `{ignored[0]}`")
    if (required := _REQUIRED.get(estimator)) and len(given.get(required, ())) != rewards:
        raise ConfigError(f"{key}: `{estimator}` needs `{required}`, one for each rollout")
    if rewards != groups:
        raise ConfigError(f"{rewards} rewards, but {groups} groups: one of each for each rollout")
