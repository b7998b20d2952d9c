"""What of `verl:`, `vllm:` and the hyper-parameters is taken, and what is refused by name."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from relight.errors import ConfigError
from relight.gpu_worker import engine_args
from relight.gpu_worker.engine import engine_command
from relight.gpu_worker.engine_args import vllm_flags
from relight.types.hyperparameters import Hyperparameters, parse_hyperparameters
from relight.types.verl_keys import flatten_verl_keys, section, startup_keys


def test_verl_keys_may_be_nested_or_dotted_and_carry_verls_prefix() -> None:
    wanted = {"actor.clip_ratio_c": 4.0, "actor.optim.betas": [0.9, 0.95], "model.override_config": {"a": {"b": 1}}}
    nested = {
        "actor": {"clip_ratio_c": 4.0, "optim": {"betas": [0.9, 0.95]}},
        "model": {"override_config": {"a": {"b": 1}}},
    }
    assert flatten_verl_keys(wanted) == wanted
    assert flatten_verl_keys(nested) == wanted
    assert flatten_verl_keys({"actor_rollout_ref": nested}) == wanted


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"actor": {"clip_ration": 0.1}}, r"verl\.actor\.clip_ration: .* did you mean `actor\.clip_ratio`"),
        ({"actor.clip_ratio": "wide"}, r"verl\.actor\.clip_ratio: 'wide' is not int or float"),
        ({"actor.ppo_epochs": True}, r"verl\.actor\.ppo_epochs: True is not int"),
        ({"actor.optim.lr_scheduler_type": "cosine"}, "would be ignored: each step has its own learning rate"),
        ({"algorithm.adv_estimator": "gae"}, "the run file's `algorithm.name` decides"),
        ({"actor.ppo_epochs": 1, "actor": {"ppo_epochs": 2}}, "given twice"),
    ],
)
def test_a_verl_key_that_would_have_no_effect_is_an_error_that_names_it(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        flatten_verl_keys(keys)


def test_startup_keys_are_those_that_a_live_trainer_cannot_change() -> None:
    flat = {"actor.clip_ratio_c": 4.0, "actor.fsdp_config.param_offload": True, "model.use_liger": False}
    assert startup_keys(flat) == {"actor.fsdp_config.param_offload": True, "model.use_liger": False}
    assert section(flat, "actor.fsdp_config") == {"param_offload": True}
    assert section(flat, "actor") == {"clip_ratio_c": 4.0}


def test_hyperparameters_fold_in_what_comes_under_verls_names() -> None:
    numbers = parse_hyperparameters(
        {
            "learning_rate": 1e-4,
            "rollout_correction": {"rollout_is": "token"},
            "verl": {
                "actor": {"ppo_epochs": 2, "policy_loss": {"loss_mode": "gspo", "dro_beta": 0.5}},
                "algorithm.rollout_correction.rollout_is_threshold": 3.0,
            },
        }
    )
    assert (numbers.ppo_epochs, numbers.loss_mode) == (2, "gspo")
    assert numbers.rollout_correction == {"rollout_is": "token", "rollout_is_threshold": 3.0}
    assert numbers.verl == {"actor.policy_loss.dro_beta": 0.5}
    assert parse_hyperparameters(numbers.model_dump(exclude_unset=True)) == numbers


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"learning_rat": 1}, "learning_rat: Extra inputs"),
        ({"learning_rate": 0}, r"learning_rate: .*greater than 0 \(given: 0\)"),
        ({"loss_agg_mode": "mean"}, "loss_agg_mode"),
        ({"loss_mode": "vanila"}, "loss_mode: Input should be 'vanilla'"),
        ({"kl_loss_type": "k4"}, "kl_loss_type"),
        ({"loss_mode": "dro"}, "needs `verl.actor.policy_loss.dro_beta`"),
        ({"mini_batch_size": 2, "mini_batches": 2}, "not both"),
        ({"ppo_epochs": 2, "verl": {"actor.ppo_epochs": 2}}, "set that alone"),
        ({"rollout_correction": {"rollout_iss": "token"}}, "rollout_iss"),
    ],
)
def test_a_hyperparameter_at_fault_is_named(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_hyperparameters(data)


def test_the_defaults_need_no_key() -> None:
    assert parse_hyperparameters({}) == Hyperparameters()


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    known = frozenset({"max_num_seqs", "enforce_eager", "hf_overrides", "dtype", "max_model_len", "max_logprobs"})
    ours = {"logprobs_mode", "generation_config", "disable_uvicorn_access_log", "distributed_executor_backend"}
    monkeypatch.setattr(engine_args, "known_flags", lambda: known | ours)


@pytest.mark.usefixtures("flags")
def test_vllm_keys_become_flags() -> None:
    keys = {"max-num-seqs": 8, "enforce_eager": False, "hf_overrides": {"a": 1}, "dtype": None}
    assert vllm_flags(keys) == ["--max-num-seqs", "8", "--no-enforce-eager", "--hf-overrides", '{"a":1}']


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("max_num_seq", r"vllm\.max_num_seq: vLLM .* did you mean `max_num_seqs`"),
        ("port", r"vllm\.port: not to be set here: engines listen on a unix socket only"),
        ("logprobs-mode", r"vllm\.logprobs_mode: not to be set here"),
    ],
)
def test_a_vllm_key_that_cannot_be_passed_on_is_named(key: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engine_command(Path("m"), Path("s"), {key: 1}, cpu=True)


@pytest.mark.usefixtures("flags")
def test_the_run_files_keys_win_over_the_defaults_of_a_cpu() -> None:
    command = engine_command(Path("m"), Path("s"), {"dtype": "bfloat16"}, cpu=True, max_model_len=64)
    pairs = dict(itertools.pairwise(command))
    assert (pairs["--dtype"], pairs["--max-model-len"], pairs["--uds"]) == ("bfloat16", "64", "s")
    assert command.count("--dtype") == 1
    assert "--dtype" not in engine_command(Path("m"), Path("s"), {}, cpu=False)
    assert {"--logprobs-mode", "processed_logprobs"} <= set(engine_command(Path("m"), Path("s"), {}, cpu=False))
