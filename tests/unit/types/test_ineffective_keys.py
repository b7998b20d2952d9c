"""Keys of a run file that would do nothing, or fail later, beside its other keys."""

from __future__ import annotations

import math
from typing import Any

import pytest

from relight.errors import ConfigError
from relight.types.run_file import parse_run_file

NAN, INF = math.nan, math.inf
HELD_OUT = {"data": {"train": "train.jsonl", "evaluation": "heldout.jsonl"}}


def run_file(**more: Any) -> dict[str, Any]:
    return {"agent": "calculator", "model": "tiny", "data": "train.jsonl", "steps": 2, "batch_size": 4, **more}


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"evaluation": {"samples": 4}}, r"`evaluation\.samples` needs `data\.evaluation`"),
        ({"evaluation": {"limit": 4}}, r"`evaluation\.limit` needs `data\.evaluation`"),
        ({"evaluation": {"sampling": {"temperature": 0}}}, r"`evaluation\.sampling` needs `data\.evaluation`"),
        (HELD_OUT | {"evaluation": {"samples": 60_000, "limit": 2}}, "makes 120000 rollouts or more an evaluation"),
        ({"verl": {"actor.shuffle": True}}, r"`verl\.actor\.shuffle` would do nothing to one mini-batch"),
        ({"verl": {"actor": {"shuffle": True, "ppo_mini_batch_size": 4}}}, "would do nothing to one mini-batch"),
        (
            {"failures": {"short_groups": "drop", "fill_up_rounds": 1}},
            "`failures.fill_up_rounds`: 1 would do nothing with `short_groups: drop`.* leave it out, or write",
        ),
        ({"failures": {"short_groups": "train", "fill_up_rounds": 0}}, "0 would do nothing with `short_groups: train`"),
        (
            {"failures": {"pause_when_stalled": True, "stalled_after_seconds": None}},
            "`failures.pause_when_stalled`: true would do nothing without `stalled_after_seconds`: give the seconds",
        ),
        (
            {"algorithm": {"loss_agg_mode": "token-mean", "sequence": "row"}},
            "`algorithm.sequence`: `row` would do nothing with `loss_agg_mode: token-mean`.*leave it out",
        ),
        (
            {"verl": {"actor": {"policy_loss": {"ppo_kl_coef": NAN}}}},
            r"`verl\.actor\.policy_loss\.ppo_kl_coef`: nan must be a finite number",
        ),
        ({"verl": {"actor.optim.num_cycles": -INF}}, r"`verl\.actor\.optim\.num_cycles`: -inf must be a finite"),
        ({"verl": {"actor.optim.betas": [0.9, NAN]}}, r"`verl\.actor\.optim\.betas\.1`: nan must be a finite"),
        ({"vllm": {"hf_overrides": {"rope": {"factor": INF}}}}, r"`vllm\.hf_overrides\.rope\.factor`: inf must be"),
        (
            {"algorithm": {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": INF}}},
            r"`algorithm\.rollout_correction\.rollout_is_threshold`: inf must be a finite",
        ),
        ({"sampling": {"top_k": -7}}, r"sampling\.top_k: .* greater than or equal to -1"),
    ],
)
def test_a_key_without_effect_or_that_would_fail_later_is_refused_by_name(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_run_file(run_file(**more))


@pytest.mark.parametrize(
    "more",
    [
        {"evaluation": {"at_start": False, "at_end": False}},
        HELD_OUT | {"evaluation": {"samples": 4, "limit": 8, "sampling": {"temperature": 0, "top_k": 0}}},
        {"failures": {"short_groups": "fill_up", "fill_up_rounds": 0}},
        {"failures": {"short_groups": "drop"}},
        {"failures": {"pause_when_stalled": True}},
        {"verl": {"actor.shuffle": True}, "algorithm": {"mini_batches": 2}},
        {"algorithm": {"loss_agg_mode": "token-mean"}},
        {"algorithm": {"loss_agg_mode": "seq-mean-token-sum", "sequence": "row"}},
        {"verl": {"actor": {"shuffle": True, "ppo_mini_batch_size": 2}}},
    ],
)
def test_a_key_with_an_effect_is_accepted_and_again_as_it_is_stored(more: dict[str, Any]) -> None:
    file = parse_run_file(run_file(**more))
    assert parse_run_file(file.model_dump(mode="json")) == file
