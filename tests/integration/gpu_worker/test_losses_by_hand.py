"""verl's policy losses and rejections over rows that don't all count alike, and over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from relight.adapter.training_rows import TrainingRow
from relight.types.hyperparameters import PolicyLoss, parse_hyperparameters
from tests.integration.gpu_worker.by_hand import (
    DYNAMIC,
    MODES,
    SGD,
    Weights,
    cut_in_two,
    differences,
    forward,
    load_by_hand,
    loss_by_hand,
    make_row,
    make_trainer,
    moved,
    rollouts,
    verl_in_this_process,
    weights_of,
)
from tests.integration.gpu_worker.tiny_model import make_tiny_model

SELECTING = ("clip_cov", "kl_cov")
"""Losses that select tokens among those of a micro-batch, as verl does."""
PLAIN = {"learning_rate": 0.1, "weight_decay": 0.0, "grad_clip": 1e9}
BETA = {"dro": {"actor.policy_loss.dro_beta": 0.1}}


@pytest.fixture(scope="module", autouse=True)
def verl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with verl_in_this_process(tmp_path_factory.mktemp("store")):
        yield


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def updated(model_dir: Path, rows: list[TrainingRow], numbers: dict[str, Any]) -> tuple[Weights, dict[str, float]]:
    """The weights after an update of version 0, and what was measured."""
    trainer = make_trainer(model_dir, SGD)
    update = trainer.train(1, rows, parse_hyperparameters(PLAIN | numbers), seed=0)
    return weights_of(trainer), update.metrics


@pytest.mark.parametrize("loss_mode", sorted(set(get_args(PolicyLoss)) - set(SELECTING)))
def test_the_split_of_rows_into_micro_batches_changes_nothing(model_dir: Path, loss_mode: str) -> None:
    numbers = {"loss_mode": loss_mode, "ppo_epochs": 2, "verl": BETA.get(loss_mode, {})}
    rows = rollouts([1, 4, 2])
    whole, _ = updated(model_dir, rows, {**numbers, "micro_batch_size": 64})
    assert moved(load_by_hand(model_dir).state_dict(), whole) > 1e-4
    assert differences(whole, updated(model_dir, rows, {**numbers, "micro_batch_size": 2})[0]) < 1e-6
    assert differences(whole, updated(model_dir, rows, numbers | DYNAMIC)[0]) < 1e-6


@pytest.mark.parametrize("sequence", ["rollout", "row"])
@pytest.mark.parametrize("loss_mode", ["geo_mean", "sapo"])
def test_losses_with_a_mean_of_their_own_take_it_over_the_sequences(
    model_dir: Path, loss_mode: str, sequence: str
) -> None:
    rows = rollouts([1, 4, 2])
    ours, metrics = updated(model_dir, rows, {"loss_mode": loss_mode, "sequence": sequence, "micro_batch_size": 3})
    model = load_by_hand(model_dir)
    loss = loss_by_hand(model, rows, "seq-mean-token-mean", loss_mode=loss_mode, sequence=sequence)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert differences(ours, model.state_dict()) < 1e-6


def test_kl_cov_selects_among_the_tokens_of_all_rows_whatever_their_weights(model_dir: Path) -> None:
    rows = rollouts([1, 4, 2])
    keys = {"actor.policy_loss.kl_cov_ratio": 0.2, "actor.policy_loss.ppo_kl_coef": 1.0}
    ours, _ = updated(model_dir, rows, {"loss_mode": "kl_cov", "ppo_epochs": 2, "verl": keys})

    model = load_by_hand(model_dir)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained = [torch.tensor(row.mask).bool() for row in rows]
    advantages = torch.cat([torch.full((row.trained_tokens,), row.advantage) for row in rows])
    sizes = {row.rollout_id: 0 for row in rows}
    for row in rows:
        sizes[row.rollout_id] += row.trained_tokens
    shares = torch.cat([torch.full((row.trained_tokens,), 1 / sizes[row.rollout_id] / len(sizes)) for row in rows])
    old: torch.Tensor | None = None
    for _ in range(2):
        optimizer.zero_grad()
        logprobs = torch.cat([forward(model, row)[0][mask] for row, mask in zip(rows, trained, strict=True)])
        old = logprobs.detach() if old is None else old
        losses = -advantages * (logprobs - old).exp()
        spread = (advantages - advantages.mean()) * (logprobs - logprobs.mean()).detach()
        chosen = spread.topk(int(0.2 * len(spread))).indices
        losses = losses.index_add(0, chosen, (logprobs - old).abs()[chosen])
        (losses * shares).sum().backward()
        optimizer.step()
    assert differences(ours, model.state_dict()) < 1e-6


def test_clip_cov_clips_its_share_of_the_tokens_of_all_rows_whatever_their_weights(model_dir: Path) -> None:
    rows = rollouts([1, 4, 2, 1, 1])
    keys = {f"actor.policy_loss.clip_cov_{name}": value for name, value in (("ratio", 0.2), ("lb", -99), ("ub", 99))}
    _, metrics = updated(model_dir, rows, {"loss_mode": "clip_cov", "verl": keys})
    tokens = sum(row.trained_tokens for row in rows)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(int(0.2 * tokens) / tokens)


def far_off(row: TrainingRow) -> TrainingRow:
    """The row as a sampler of quite another opinion would have written it."""
    return row.model_copy(update={"sampled_logprobs": [-20.0] * len(row.mask)})


REJECTION = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.1_10"}


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_rejecting_all_rows_of_a_micro_batch_is_rejecting_them_in_any_other(model_dir: Path, mode: str) -> None:
    rows = [far_off(row) if row.rollout_id == "r1" else row for row in rollouts([1, 4, 2])]
    numbers = {"rollout_correction": REJECTION, "loss_agg_mode": mode}
    whole, metrics = updated(model_dir, rows, numbers)
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(4 / 7)
    assert moved(load_by_hand(model_dir).state_dict(), whole) > 1e-4
    for size in (1, 2):
        cut, _ = updated(model_dir, rows, {**numbers, "micro_batch_size": size})
        assert differences(whole, cut) < 1e-6


@pytest.mark.parametrize("mode", MODES)
def test_the_rest_of_a_rollout_trains_alike_however_it_is_split_into_rows(model_dir: Path, mode: str) -> None:
    model = load_by_hand(model_dir)
    whole, *others = (as_sampled(model, make_row(name, seed)) for name, seed in (("a", 6), ("b", 1), ("c", 2)))
    later = [i for i, trained in enumerate(whole.mask) if trained and i > 2]
    refused = {later[0]: -20.0, later[1]: -20.0}
    logprobs = [refused.get(i, value) for i, value in enumerate(whole.sampled_logprobs)]
    whole = whole.model_copy(update={"sampled_logprobs": logprobs})
    numbers: dict[str, Any] = {"loss_agg_mode": mode, "verl": {"actor.loss_scale_factor": 7}}
    numbers |= {"rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.1_10"}}
    if not mode.endswith("norm"):
        del numbers["verl"]
    single, _ = updated(model_dir, [whole, *others], numbers)
    assert moved(model.state_dict(), single) > 1e-4
    assert differences(single, updated(model_dir, [*cut_in_two(whole, 3), *others], numbers)[0]) < 1e-6


def as_sampled(model: Any, row: TrainingRow) -> TrainingRow:
    """The row as a sampler that agrees with the trainer would have written it."""
    with torch.no_grad():
        return row.model_copy(update={"sampled_logprobs": forward(model, row)[0].tolist()})


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_rejecting_all_rows_of_an_update_leaves_the_weights(model_dir: Path, mode: str, bypass: bool) -> None:
    rows = [far_off(row) for row in rollouts([1, 4, 2])]
    correction = REJECTION | ({"bypass_mode": True, "loss_type": "reinforce"} if bypass else {})
    weights, metrics = updated(model_dir, rows, {"rollout_correction": correction, "loss_agg_mode": mode})
    assert moved(load_by_hand(model_dir).state_dict(), weights) == 0
    assert (metrics["optimizer_steps"], metrics["rejected_steps"]) == (0, 1)
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 1


@pytest.mark.parametrize("correction", [{}, {"bypass_mode": True}, {"bypass_mode": True, "loss_type": "reinforce"}])
def test_a_mini_batch_that_is_rejected_leaves_the_weights_whatever_the_optimizer_remembers(
    model_dir: Path, correction: dict[str, Any]
) -> None:
    trainer, model = make_trainer(model_dir, {}), load_by_hand(model_dir)
    good = [as_sampled(model, row) for row in rollouts([1, 4, 2])]
    numbers = parse_hyperparameters(
        {"learning_rate": 0.01, "micro_batch_size": 2, "rollout_correction": REJECTION | correction}
    )
    assert trainer.train(1, good, numbers, seed=0).metrics["optimizer_steps"] == 1
    before = weights_of(trainer)
    assert moved(model.state_dict(), before) > 1e-4
    metrics = trainer.train(2, [far_off(row) for row in good], numbers, seed=0).metrics
    assert (metrics["optimizer_steps"], metrics["rejected_steps"]) == (0, 1)
    assert moved(before, weights_of(trainer)) == 0
    again = numbers.model_copy(update={"rollout_correction": {}})
    assert trainer.train(3, good, again, seed=0).metrics["optimizer_steps"] == 1
    assert moved(before, weights_of(trainer)) > 1e-4


@pytest.mark.parametrize("kind", ["ppo_clip", "reinforce"])
def test_in_bypass_mode_a_micro_batch_may_hold_nothing_that_trains(model_dir: Path, kind: str) -> None:
    rows = rollouts([1, 4, 2])
    rows += [row.model_copy(update={"mask": [0] * len(row.mask), "rollout_id": "none"}) for row in rows[:2]]
    numbers = {"rollout_correction": {"bypass_mode": True, "loss_type": kind}}
    whole, _ = updated(model_dir, rows, numbers)
    assert differences(whole, updated(model_dir, rows, {**numbers, "micro_batch_size": 1})[0]) < 1e-6


def test_optimizer_steps_whose_gradient_is_not_finite_are_counted_and_move_nothing(model_dir: Path) -> None:
    rows = rollouts([1, 2, 1])
    broken = [row.model_copy(update={"advantage": 3e38}) if row.rollout_id == "r2" else row for row in rows]
    start = load_by_hand(model_dir).state_dict()
    numbers = {"mini_batches": 2}
    weights, metrics = updated(model_dir, broken, numbers)
    good, alone = updated(model_dir, [row for row in rows if row.rollout_id == "r0"], {})
    assert (metrics["optimizer_steps"], metrics["nonfinite_steps"]) == (1, 1)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["grad_norm"] == pytest.approx(alone["grad_norm"])
    assert moved(start, weights) > 1e-4
    assert differences(weights, good) < 1e-6
    weights, metrics = updated(model_dir, broken, {})
    assert (metrics["optimizer_steps"], metrics["nonfinite_steps"]) == (0, 1)
    assert moved(start, weights) == 0
