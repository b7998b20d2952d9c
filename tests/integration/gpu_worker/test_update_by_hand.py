"""Our update against verl's estimator and losses called by hand on the same rows, with plain torch around them."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from relight.errors import ConfigError, TrainerError
from relight.gpu_worker.platform_cpu import prepare_device, register_engines
from relight.gpu_worker.rows import TrainRow, rollout_weights
from relight.types.hyperparameters import PolicyLoss, parse_hyperparameters
from relight.types.verl_keys import KNOWN_KEYS
from tests.integration.gpu_worker.tiny_model import make_tiny_model

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
SGD = {"actor.optim.optimizer": "SGD"}
SMOOTH_ADAM = {"actor.optim.override_optimizer_config": {"eps": 1e-4}}
"""With its usual epsilon Adam makes a full step of the rounding error of a zero gradient."""
RANK_0 = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def verl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """verl in this very process, with a process group of one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RANK_0.items():
            patch.setenv(name, value)
        patch.setenv("VERL_PLATFORM", os.environ.get("VERL_PLATFORM", ""))
        prepare_device()
        torch.set_num_threads(1)
        store = tmp_path_factory.mktemp("store") / "store"
        torch.distributed.init_process_group("gloo", init_method=store.as_uri(), rank=0, world_size=1)
        register_engines()
        yield
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def make_row(rollout: str, seed: int, **more: Any) -> TrainRow:
    dice = random.Random(seed)
    length = dice.randint(3, 9)
    mask = [1, *(int(dice.random() < 0.8) for _ in range(length - 1))]
    values: dict[str, Any] = {
        "rollout_id": rollout,
        "prompt_ids": [dice.randrange(4, 99) for _ in range(dice.randint(2, 7))],
        "response_ids": [dice.randrange(4, 99) for _ in range(length)],
        "mask": mask,
        "advantage": dice.uniform(-1, 1),
        "sampled_logprobs": [dice.uniform(-5, -4) for _ in range(length)],
    }
    return TrainRow(**(values | more))


def rollouts(shape: list[int]) -> list[TrainRow]:
    """As many rows a rollout as the shape says, with the rollout's advantage on each."""
    return [
        make_row(f"r{k}", 100 * k + i, advantage=random.Random(k).uniform(-1, 1))
        for k, rows in enumerate(shape)
        for i in range(rows)
    ]


def make_trainer(model_dir: Path, startup: dict[str, Any]) -> Any:
    from relight.gpu_worker.trainer import Trainer

    return Trainer(model_dir, "cpu", startup)


def weights_of(trainer: Any) -> Weights:
    return {name: value.full_tensor().clone() for name, value in trainer.worker.engine.module.state_dict().items()}


def load_by_hand(model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa")


def differences(ours: Weights, theirs: Weights) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def moved(before: Weights, after: Weights) -> float:
    return differences(before, after)


def forward(model: Any, row: TrainRow, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies of a row's response tokens."""
    logits = model(input_ids=torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    logprobs = (logits[len(row.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(row.response_ids).unsqueeze(1)).squeeze(1)
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def padded(rows: list[torch.Tensor], width: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])


def loss_by_hand(
    model: Any,
    rows: list[TrainRow],
    mode: str,
    *,
    loss_mode: str = "vanilla",
    entropy_coeff: float = 0.0,
    old: dict[int, torch.Tensor] | None = None,
    correction: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """The mean over rollouts of verl's loss on the rows of each."""
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    width = max(len(row.response_ids) for row in rows)
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=mode)
    parts: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        parts.setdefault(row.rollout_id, []).append(i)
    losses: list[torch.Tensor] = []
    for indices in parts.values():
        results = [forward(model, rows[i], temperature) for i in indices]
        logprobs = padded([logprob for logprob, _ in results], width)
        mask = padded([torch.tensor(rows[i].mask, dtype=torch.float32) for i in indices], width)
        before = padded([old[i] for i in indices], width) if old else logprobs.detach()
        sampled = padded([torch.tensor(rows[i].sampled_logprobs) for i in indices], width)
        loss, _ = get_policy_loss_fn(loss_mode)(
            old_log_prob=before,
            log_prob=logprobs,
            advantages=mask * torch.tensor([[rows[i].advantage] for i in indices]),
            response_mask=mask,
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=correction(before, sampled, mask) if correction else None,
        )
        entropy = padded([entropy for _, entropy in results], width)
        losses.append(loss - entropy_coeff * agg_loss(loss_mat=entropy, loss_mask=mask, loss_agg_mode=mode))
    return torch.stack(losses).mean()


def gradient_norm(model: Any) -> float:
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


@pytest.mark.parametrize(
    ("mode", "shape", "more"),
    [
        *((mode, [1, 4, 2], {}) for mode in MODES),
        ("token-mean", [1, 1, 1, 1], {}),
        ("seq-mean-token-mean", [1, 1, 1, 1], {"loss_mode": "gspo"}),
        ("token-mean", [1, 4, 2], {"loss_mode": "gspo"}),
        ("token-mean", [1, 4, 2], {"entropy_coeff": 0.1, "temperature": 0.7}),
        ("seq-mean-token-mean", [1, 4, 2], {"entropy_coeff": 0.1, "temperature": 0.7}),
    ],
)
def test_an_update_is_the_mean_over_rollouts_of_verls_loss(
    model_dir: Path, mode: str, shape: list[int], more: dict[str, Any]
) -> None:
    rows = rollouts(shape)
    numbers = {"loss_agg_mode": mode, "learning_rate": 0.1, "weight_decay": 0.0, "grad_clip": 1e9} | more
    trainer = make_trainer(model_dir, SGD)
    update = trainer.train(1, rows, parse_hyperparameters(numbers), seed=0)

    model = load_by_hand(model_dir)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss = loss_by_hand(model, rows, mode, **more)
    loss.backward()
    assert update.metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert update.metrics["grad_norm"] == pytest.approx(gradient_norm(model), rel=1e-4)
    assert update.metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert moved(before, model.state_dict()) > 1e-4
    assert differences(weights_of(trainer), model.state_dict()) < 1e-6
    for row, logprobs in zip(rows, update.logprobs, strict=True):
        with torch.no_grad():
            by_hand, _ = forward(load_by_hand(model_dir), row, more.get("temperature", 1.0))
        assert logprobs == pytest.approx(by_hand.tolist(), abs=1e-5)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum"])
def test_with_one_row_a_rollout_it_is_verls_estimator_and_loss_on_the_batch_and_nothing_else(
    model_dir: Path, mode: str
) -> None:
    import numpy as np
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_policy_loss_vanilla
    from verl.workers.config import FSDPActorConfig

    from relight.gpu_worker.estimators import compute_advantages

    rewards, groups = [1.0, 0.0, 0.0, 1.0, 1.0, 0.5], ["a", "a", "a", "b", "b", "b"]
    drawn = rollouts([1] * 6)
    advantages = compute_advantages("grpo", rewards, groups)
    rows = [row.model_copy(update={"advantage": a}) for row, a in zip(drawn, advantages, strict=True)]
    trainer = make_trainer(model_dir, SGD)
    numbers = {
        "loss_agg_mode": mode,
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "grad_clip": 1e9,
        "micro_batch_size": 4,
    }
    trainer.train(1, rows, parse_hyperparameters(numbers), seed=0)

    model = load_by_hand(model_dir)
    width = max(len(row.response_ids) for row in rows)
    mask = padded([torch.tensor(row.mask, dtype=torch.float32) for row in rows], width)
    scores = torch.zeros_like(mask)
    scores[:, 0] = torch.tensor(rewards)
    by_hand, _ = compute_grpo_outcome_advantage(scores, mask, np.array(groups))
    logprobs = padded([forward(model, row)[0] for row in rows], width)
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    loss, _ = compute_policy_loss_vanilla(logprobs.detach(), logprobs, by_hand, mask, mode, config)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert differences(weights_of(trainer), model.state_dict()) < 1e-6


def test_several_updates_with_epochs_mini_batches_and_a_new_learning_rate_keep_adams_moments(model_dir: Path) -> None:
    rows = rollouts([1, 3, 2, 1])
    trainer = make_trainer(model_dir, SMOOTH_ADAM)
    model = load_by_hand(model_dir)
    optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4, betas=(0.9, 0.999))
    for version, rate in ((1, 1e-2), (2, 1e-3)):
        numbers = {"learning_rate": rate, "ppo_epochs": 2, "mini_batch_size": 2, "grad_clip": 0.05}
        trainer.train(version, rows, parse_hyperparameters(numbers), seed=0)
        optimizer.param_groups[0]["lr"] = rate
        with torch.no_grad():
            old = {i: forward(model, row)[0] for i, row in enumerate(rows)}
        for _ in range(2):
            for part in ([0, 1, 2, 3], [4, 5, 6]):
                optimizer.zero_grad()
                held = {place: old[i] for place, i in enumerate(part)}
                loss_by_hand(model, [rows[i] for i in part], "seq-mean-token-mean", old=held).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
    assert differences(weights_of(trainer), model.state_dict()) < 2e-6


def test_the_correction_of_sampler_and_trainer_is_verls(model_dir: Path) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    def correction(old: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return compute_rollout_correction_weights(old - sampled, mask, "token", 0.8)[0]

    rows = rollouts([1, 3])
    numbers = {
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "grad_clip": 1e9,
        "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 0.8},
    }
    trainer = make_trainer(model_dir, SGD)
    update = trainer.train(1, rows, parse_hyperparameters(numbers), seed=0)
    model = load_by_hand(model_dir)
    loss_by_hand(model, rows, "seq-mean-token-mean", correction=correction).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert differences(weights_of(trainer), model.state_dict()) < 1e-6
    assert update.metrics["rollout_corr/rollout_is_max"] == pytest.approx(0.8)


@pytest.mark.parametrize("loss_mode", get_args(PolicyLoss))
def test_each_of_verls_policy_losses_trains(model_dir: Path, loss_mode: str) -> None:
    trainer = make_trainer(model_dir, SGD)
    before = weights_of(trainer)
    numbers = {"loss_mode": loss_mode, "learning_rate": 0.1, "ppo_epochs": 2, "weight_decay": 0.0}
    verl = {"actor.policy_loss.dro_beta": 0.1} if loss_mode == "dro" else {}
    update = trainer.train(1, rollouts([1, 3, 2]), parse_hyperparameters({**numbers, "verl": verl}), seed=0)
    assert math.isfinite(update.metrics["loss"])
    assert differences(weights_of(trainer), before) > 1e-5


def test_bypass_mode_takes_the_samplers_logprobs_for_the_old_policys(model_dir: Path) -> None:
    rows = rollouts([1, 2])
    trainer = make_trainer(model_dir, SGD)
    numbers = {"learning_rate": 0.1, "weight_decay": 0.0, "rollout_correction": {"bypass_mode": True}}
    update = trainer.train(1, rows, parse_hyperparameters(numbers | {"grad_clip": 1e9}), seed=0)
    model = load_by_hand(model_dir)
    sampled = {i: torch.tensor(row.sampled_logprobs) for i, row in enumerate(rows)}
    loss = torch.stack(
        [
            loss_by_hand(model, part, "seq-mean-token-mean", old={i: sampled[at + i] for i in range(len(part))})
            for at, part in ((0, rows[:1]), (1, rows[1:]))
        ]
    ).mean()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert differences(weights_of(trainer), model.state_dict()) < 1e-6
    assert update.logprobs[0] != pytest.approx(rows[0].sampled_logprobs)


def test_the_policy_losses_that_can_be_named_are_verls() -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    assert set(get_args(PolicyLoss)) == set(POLICY_LOSS_REGISTRY) - {"bypass_mode"}


@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_of_ten_rows_moves_the_weights_as_one_of_one_row(model_dir: Path, mode: str) -> None:
    numbers = {
        "loss_agg_mode": mode,
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "grad_clip": 1e9,
        "entropy_coeff": 0.1,
        "use_kl_loss": True,
        "kl_loss_coef": 0.5,
        "micro_batch_size": 4,
        "ppo_epochs": 2,  # in the second pass the policy has left version 0, and the KL loss has a gradient
    }

    def updated(rows: list[TrainRow]) -> Weights:
        trainer = make_trainer(model_dir, SGD)
        trainer.train(1, rows, parse_hyperparameters(numbers), seed=0)
        return weights_of(trainer)

    # The rows of other rollouts are of other lengths, so that a weight that forgot tokens would show.
    others = [make_row("b", 1), make_row("c", 2), make_row("c", 3)]
    one = make_row("a", 4, advantage=0.9)
    single = updated([one, *others])
    start = load_by_hand(model_dir).state_dict()
    assert moved(start, single) > 1e-3
    assert differences(updated([*[one] * 10, *others]), single) < 2e-6
    # verl's own loss counts rows, or their tokens: with ten of them the rollout would drown the others.
    assert (
        differences(updated([row.model_copy(update={"weight": 1.0}) for row in [*[one] * 10, *others]]), single) > 1e-4
    )


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_rollouts_of_opposite_advantage_cancel_out_whatever_their_number_of_rows(model_dir: Path, mode: str) -> None:
    up = make_row("one", 4, advantage=1.0)
    down = [up.model_copy(update={"rollout_id": "ten", "advantage": -1.0})] * 10
    numbers = parse_hyperparameters({"loss_agg_mode": mode, "learning_rate": 1.0, "weight_decay": 0.0})
    trainer = make_trainer(model_dir, SGD)
    before = weights_of(trainer)
    update = trainer.train(1, [up, *down], numbers, seed=0)
    assert update.metrics["grad_norm"] < 1e-5
    assert moved(before, weights_of(trainer)) < 1e-5


def test_how_rows_are_cut_into_micro_batches_changes_nothing(model_dir: Path) -> None:
    results: list[Weights] = []
    for cut in ({"micro_batch_size": 64}, {"micro_batch_size": 2}, {"use_dynamic_bsz": True, "max_token_len": 24}):
        trainer = make_trainer(model_dir, SGD)
        numbers = {"learning_rate": 0.1, "grad_clip": 1e9, "infer_max_token_len": 24, **cut}
        trainer.train(1, rollouts([1, 4, 2]), parse_hyperparameters(numbers), seed=0)
        results.append(weights_of(trainer))
    assert differences(results[0], results[1]) < 1e-6
    assert differences(results[0], results[2]) < 1e-6


def test_rows_may_carry_temperatures_of_their_own(model_dir: Path) -> None:
    rows = [make_row("a", 1, temperature=0.5), make_row("b", 2)]
    trainer = make_trainer(model_dir, SGD)
    update = trainer.train(1, rows, parse_hyperparameters({"temperature": 1.3}), seed=0)
    with torch.no_grad():
        model = load_by_hand(model_dir)
        by_hand = [forward(model, rows[0], 0.5)[0].tolist(), forward(model, rows[1], 1.3)[0].tolist()]
    assert update.logprobs == [pytest.approx(row, abs=1e-5) for row in by_hand]


def test_an_update_that_breaks_off_leaves_no_version_that_could_be_used(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(model_dir, SGD)

    def break_off(_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trainer.worker, "train_mini_batch", break_off)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train(1, rollouts([1, 1]), parse_hyperparameters({}), seed=0)
    assert trainer.state()["version"] is None
    with pytest.raises(TrainerError, match="the trainer holds None"):
        trainer.train(1, rollouts([1, 1]), parse_hyperparameters({}), seed=0)
    trainer.load_model(0, model_dir, keep_optimizer=False)
    assert trainer.state()["version"] == 0


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo_no_std", [0.5, -0.5, 0.25, -0.75, 0.25, 0.25]),
        ("rloo", [1.0, -1.0, 1 / 3, -1.0, 1 / 3, 1 / 3]),
        ("rloo_vectorized", [1.0, -1.0, 1 / 3, -1.0, 1 / 3, 1 / 3]),
    ],
)
def test_estimators_see_each_rollout_once(estimator: str, expected: list[float]) -> None:
    from relight.gpu_worker.estimators import compute_advantages

    rewards, groups = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b", "b", "b"]
    assert compute_advantages(estimator, rewards, groups) == pytest.approx(expected, abs=1e-5)


def test_more_estimators_with_their_options() -> None:
    from relight.gpu_worker.estimators import compute_advantages

    rewards, groups = [1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"]
    for estimator in ("grpo", "grpo_vectorized"):
        assert compute_advantages(estimator, rewards, groups)[:2] == pytest.approx([0.7071, -0.7071], abs=1e-3)
        plain = compute_advantages(estimator, rewards, groups, {"norm_adv_by_std_in_grpo": False})
        assert plain == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert sum(compute_advantages("reinforce_plus_plus_baseline", rewards, groups)) == pytest.approx(0, abs=1e-5)
    assert sum(compute_advantages("reinforce_plus_plus", rewards, groups)) == pytest.approx(0, abs=1e-5)
    assert compute_advantages("gpg", rewards, groups, {"f_norm": 2.0}) == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert compute_advantages("grpo_passk", rewards, groups)[1] == 0
    assert compute_advantages("remax", rewards, groups, {"baselines": [0.25] * 4}) == pytest.approx(
        [0.75, -0.25, 0.75, -0.25]
    )
    by_length = compute_advantages("opo", rewards, groups, {"lengths": [3, 1, 1, 1]})
    assert by_length == pytest.approx([0.25, -0.75, 0.5, -0.5])


@pytest.mark.parametrize(
    ("estimator", "options", "complaint"),
    [
        ("gae", {}, "`gae` is not supported: it needs a critic.*allowed: .*grpo"),
        ("grpoo", {}, "algorithm.name: `grpoo` is unknown; allowed: .*grpo"),
        ("rloo", {"norm_adv_by_std_in_grpo": True}, "would ignore the option `norm_adv_by_std_in_grpo`"),
        ("remax", {}, "needs `baselines`, one for each rollout"),
    ],
)
def test_an_estimator_that_cannot_be_used_is_an_error_that_names_those_that_can(
    estimator: str, options: dict[str, Any], complaint: str
) -> None:
    from relight.gpu_worker.estimators import compute_advantages

    with pytest.raises(ConfigError, match=complaint):
        compute_advantages(estimator, [1.0, 0.0], ["a", "a"], options)


def test_every_key_that_is_handed_on_is_one_of_verls() -> None:
    from verl.trainer.config import RolloutCorrectionConfig
    from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.config.actor import PolicyLossConfig

    owners = {
        "actor": FSDPActorConfig,
        "actor.policy_loss": PolicyLossConfig,
        "actor.optim": FSDPOptimizerConfig,
        "actor.fsdp_config": FSDPEngineConfig,
        "model": HFModelConfig,
        "algorithm.rollout_correction": RolloutCorrectionConfig,
    }
    for key in KNOWN_KEYS:
        section, _, name = key.rpartition(".")
        assert name in {field.name for field in fields(owners[section])}, key


def test_the_weights_that_the_loss_takes_are_the_documented_ones() -> None:
    from relight.gpu_worker.batch import make_batch

    rows = rollouts([1, 3])
    for mode in MODES:
        assert make_batch(rows, mode).weights.tolist() == pytest.approx(rollout_weights(rows, mode))
