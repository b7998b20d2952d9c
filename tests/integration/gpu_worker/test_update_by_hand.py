"""Our update against verl's estimator and losses called by hand on the same rows, with plain torch around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch

from relight.adapter.training_rows import TrainingRow
from relight.errors import TrainerError
from relight.gpu_worker.row_file import row_weights
from relight.types.hyperparameters import LossSequence, PolicyLoss, parse_hyperparameters
from relight.types.verl_keys import KNOWN_KEYS
from tests.integration.gpu_worker.by_hand import (
    MODES,
    SGD,
    SMOOTH_ADAM,
    Weights,
    cut_in_two,
    differences,
    forward,
    gradient_norm,
    load_by_hand,
    loss_by_hand,
    make_row,
    make_trainer,
    moved,
    padded,
    rollouts,
    verl_in_this_process,
    weights_of,
)
from tests.integration.gpu_worker.tiny_model import make_tiny_model


@pytest.fixture(scope="module", autouse=True)
def verl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with verl_in_this_process(tmp_path_factory.mktemp("store")):
        yield


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("mode", "shape", "more"),
    [
        *((mode, [1, 10, 2], {}) for mode in MODES),
        *((mode, [1, 10, 2], {"sequence": "row"}) for mode in MODES),
        ("token-mean", [1, 1, 1, 1], {}),
        ("seq-mean-token-mean", [1, 1, 1, 1], {"loss_mode": "gspo"}),
        ("token-mean", [1, 4, 2], {"loss_mode": "gspo"}),
        ("token-mean", [1, 4, 2], {"entropy_coeff": 0.1, "temperature": 0.7}),
        ("seq-mean-token-mean", [1, 4, 2], {"entropy_coeff": 0.1, "temperature": 0.7}),
        ("seq-mean-token-sum", [1, 4, 2], {"entropy_coeff": 0.1, "sequence": "row"}),
    ],
)
def test_an_update_follows_the_loss_that_is_written_out_by_hand(
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


@pytest.mark.parametrize("shape", [[1] * 6, [1, 10, 1, 2, 1, 3]])
@pytest.mark.parametrize("mode", MODES)
def test_with_rows_for_sequences_an_update_is_verls_estimator_and_loss_on_the_batch(
    model_dir: Path, mode: str, shape: list[int]
) -> None:
    import numpy as np
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_policy_loss_vanilla
    from verl.workers.config import FSDPActorConfig

    from relight.gpu_worker.estimators import compute_advantages

    rewards, groups = [1.0, 0.0, 0.0, 1.0, 1.0, 0.5], ["a", "a", "a", "b", "b", "b"]
    advantages = compute_advantages("grpo", rewards, groups)
    rows = [row.model_copy(update={"advantage": advantages[int(row.rollout_id[1:])]}) for row in rollouts(shape)]
    trainer = make_trainer(model_dir, SGD)
    numbers = {
        "loss_agg_mode": mode,
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "grad_clip": 1e9,
        "micro_batch_size": 4,
        "sequence": "row" if len(rows) > len(shape) else "rollout",
    }
    trainer.train(1, rows, parse_hyperparameters(numbers), seed=0)

    model = load_by_hand(model_dir)
    width = max(len(row.response_ids) for row in rows)
    mask = padded([torch.tensor(row.mask, dtype=torch.float32) for row in rows], width)
    by_estimator, _ = compute_grpo_outcome_advantage(torch.tensor([rewards]).T, torch.ones(6, 1), np.array(groups))
    by_hand = mask * by_estimator[[int(row.rollout_id[1:]) for row in rows]]
    logprobs = padded([forward(model, row)[0] for row in rows], width)
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    loss, _ = cast(Any, compute_policy_loss_vanilla)(logprobs.detach(), logprobs, by_hand, mask, mode, config)
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
                held = {row: old[i] for row, i in enumerate(part)}
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


def test_bypass_mode_uses_the_samplers_logprobs_as_the_old_policys(model_dir: Path) -> None:
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
def test_the_split_of_a_rollouts_tokens_into_rows_changes_nothing(model_dir: Path, mode: str) -> None:
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
        "verl": {"actor.loss_scale_factor": 7} if mode.endswith("norm") else {},
    }

    def updated(rows: list[TrainingRow], **more: Any) -> Weights:
        trainer = make_trainer(model_dir, SGD)
        trainer.train(1, rows, parse_hyperparameters(numbers | more), seed=0)
        return weights_of(trainer)

    others = [make_row("b", 1), make_row("c", 2), make_row("c", 3)]
    whole = next(row for row in (make_row("a", seed, advantage=0.9) for seed in range(4, 99)) if len(row.mask) > 6)
    single = updated([whole, *others])
    cut = [*cut_in_two(whole, 2), *others]
    assert moved(load_by_hand(model_dir).state_dict(), single) > 1e-3
    assert differences(updated(cut), single) < 2e-6
    by_rows = differences(updated(cut, sequence="row"), single)
    assert by_rows < 2e-6 if mode == "token-mean" else by_rows > 1e-4


def test_a_rollout_of_ten_rows_weighs_one_in_the_mean_over_rollouts_and_ten_in_that_over_tokens(
    model_dir: Path,
) -> None:
    up = make_row("one", 4, advantage=1.0)
    down = [up.model_copy(update={"rollout_id": "ten", "advantage": -1.0})] * 10
    norms: dict[tuple[str, str], float] = {}
    for mode, sequence in (("seq-mean-token-mean", "rollout"), ("seq-mean-token-mean", "row"), ("token-mean", "row")):
        numbers = {"loss_agg_mode": mode, "sequence": sequence, "learning_rate": 1.0, "weight_decay": 0.0}
        update = make_trainer(model_dir, SGD).train(1, [up, *down], parse_hyperparameters(numbers), seed=0)
        norms[mode, sequence] = update.metrics["grad_norm"]
    assert norms["seq-mean-token-mean", "rollout"] < 1e-5
    assert norms["seq-mean-token-mean", "row"] == pytest.approx(norms["token-mean", "row"], rel=1e-4)
    assert norms["token-mean", "row"] > 1e-3


@pytest.mark.parametrize(
    ("numbers", "rollouts_of_parts"),
    [
        ({}, [13]),
        ({"mini_batches": 2}, [6, 7]),
        ({"mini_batches": 3}, [6, 3, 4]),
        ({"mini_batch_size": 4}, [2, 4, 3, 4]),
        ({"mini_batch_size": 1}, [2, 4, 3, 4]),
        ({"mini_batches": 9}, [2, 4, 3, 4]),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_mini_batch_holds_whole_groups_however_short_they_are(
    numbers: dict[str, Any], rollouts_of_parts: list[int], shuffle: bool
) -> None:
    from relight.gpu_worker.tensor_batch import mini_batches

    sizes = [2, 4, 3, 4]
    rows = [
        make_row(f"g{group}i{sample}", turn, group=group)
        for turn in range(2)
        for group, size in enumerate(sizes)
        for sample in range(size)
    ]
    parts = mini_batches(rows, parse_hyperparameters(numbers | {"shuffle": shuffle}), seed=5)
    assert sorted(i for part in parts for i in part) == list(range(len(rows)))
    groups = [{rows[i].group for i in part} for part in parts]
    assert sum(map(len, groups)) == len(sizes)
    if not shuffle:
        assert [len({rows[i].rollout_id for i in part}) for part in parts] == rollouts_of_parts


def test_rows_may_have_temperatures_of_their_own(model_dir: Path) -> None:
    rows = [make_row("a", 1, temperature=0.5), make_row("b", 2)]
    trainer = make_trainer(model_dir, SGD)
    update = trainer.train(1, rows, parse_hyperparameters({"temperature": 1.3}), seed=0)
    with torch.no_grad():
        model = load_by_hand(model_dir)
        by_hand = [forward(model, rows[0], 0.5)[0].tolist(), forward(model, rows[1], 1.3)[0].tolist()]
    assert update.logprobs == [pytest.approx(row, abs=1e-5) for row in by_hand]


@pytest.mark.parametrize("cut", [{"micro_batch_size": 2}, {"use_dynamic_bsz": True, "max_token_len": 24}])
def test_gradient_ratio_and_kl_are_taken_at_each_rows_own_temperature(model_dir: Path, cut: dict[str, Any]) -> None:
    temperatures = [0.5, 1.3, 0.5, None, 2.0]
    rows = [row.model_copy(update={"temperature": temperatures[i]}) for i, row in enumerate(rollouts([1, 3, 1]))]
    numbers: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.0, "grad_clip": 1e9, "temperature": 0.8}
    trainer = make_trainer(model_dir, SGD)
    settings = parse_hyperparameters(numbers | {"use_kl_loss": True, "entropy_coeff": 0.1} | cut)
    update = trainer.train(1, rows, settings, seed=0)

    model = load_by_hand(model_dir)
    loss_by_hand(model, rows, "seq-mean-token-mean", entropy_coeff=0.1, temperature=0.8).backward()
    assert update.metrics["grad_norm"] == pytest.approx(gradient_norm(model), rel=1e-4)
    assert update.metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert update.metrics["kl_loss"] == pytest.approx(0, abs=1e-6)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert differences(weights_of(trainer), model.state_dict()) < 1e-6


def test_a_replay_that_differs_keeps_what_the_export_is_too_coarse_to_hold(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    given = make_tiny_model(tmp_path / "given")
    AutoModelForCausalLM.from_pretrained(given, dtype=torch.bfloat16).save_pretrained(given)
    first = make_trainer(given, {})
    first.train(1, rollouts([1, 2, 1]), parse_hyperparameters({"learning_rate": 1e-5}), seed=0)
    published = first.save(tmp_path / "published", None, {}).export
    second = make_trainer(given, {})
    second.train(1, rollouts([1, 2, 1]), parse_hyperparameters({"learning_rate": 1.2e-5}), seed=0)
    replayed = weights_of(second)
    moments = second.worker.engine.optimizer.state_dict()["state"]

    patched = second.agree(1, tmp_path / "published", tmp_path / "agreed")

    agreed, exported = weights_of(second), load_file(tmp_path / "published" / "model.safetensors")
    assert {value.dtype for value in exported.values()} == {torch.bfloat16}
    differing = kept = 0
    for name, value in exported.items():
        same = replayed[name].to(torch.bfloat16) == value
        assert torch.equal(agreed[name][same], replayed[name][same])
        assert torch.equal(agreed[name][~same], value.float()[~same])
        differing += int((~same).sum())
        kept += int((replayed[name] != value.float())[same].sum())
    assert patched == differing > 0
    assert kept > 10 * differing  # all of which loading the export would round away
    assert second.version == 1
    assert second.save(tmp_path / "again", tmp_path / "checkpoint", {}).export.weights_digest == (
        published.weights_digest
    )
    for number, state in second.worker.engine.optimizer.state_dict()["state"].items():
        assert torch.equal(full(state["exp_avg"]), full(moments[number]["exp_avg"]))
    second.train(2, rollouts([1, 2]), parse_hyperparameters({"learning_rate": 1e-5}), seed=0)


def full(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def test_an_interrupted_update_leaves_no_usable_version(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(model_dir, SGD)

    def break_off(_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trainer.worker, "train_mini_batch", break_off)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train(1, rollouts([1, 1]), parse_hyperparameters({}), seed=0)
    assert trainer.state().version is None
    with pytest.raises(TrainerError, match="the trainer holds None"):
        trainer.train(1, rollouts([1, 1]), parse_hyperparameters({}), seed=0)
    trainer.load_model(0, model_dir)
    assert trainer.state().version == 0


def test_every_key_that_is_passed_on_is_one_of_verls() -> None:
    from verl.trainer.config import AlgoConfig, RolloutCorrectionConfig
    from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.config.actor import PolicyLossConfig

    owners = {
        "actor": FSDPActorConfig,
        "actor.policy_loss": PolicyLossConfig,
        "actor.optim": FSDPOptimizerConfig,
        "actor.fsdp_config": FSDPEngineConfig,
        "model": HFModelConfig,
        "algorithm": AlgoConfig,
        "algorithm.rollout_correction": RolloutCorrectionConfig,
    }
    for key in KNOWN_KEYS:
        section, _, name = key.rpartition(".")
        assert name in {field.name for field in fields(owners[section])}, key


def test_the_weights_that_the_loss_takes_are_the_documented_ones() -> None:
    from relight.gpu_worker.tensor_batch import make_batch

    rows = rollouts([1, 3])
    for mode in MODES:
        for sequence in get_args(LossSequence):
            taken = make_batch(rows, mode, sequence).weights.tolist()
            assert taken == pytest.approx(row_weights(rows, mode, sequence))
