"""What of `verl:`, `vllm:` and the hyper-parameters is taken, and what is refused by name."""

from __future__ import annotations

import itertools
import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from relight.errors import ConfigError
from relight.gpu_worker.engine import engine_command
from relight.gpu_worker.engine_args import vllm_flags
from relight.store.training.plans import resolve_plan
from relight.types.hyperparameters import Hyperparameters, parse_hyperparameters, trainer_numbers
from relight.types.run_file import parse_run_file
from relight.types.verl_keys import flatten_verl_keys, section, startup_keys
from relight.types.vllm_keys import VllmKeys, known_keys


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
        ({"actor.data_loader_seed": 3}, "would be ignored: the run file's `seed` decides"),
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


def test_hyperparameters_include_keys_under_verls_names() -> None:
    numbers = parse_hyperparameters(
        {
            "learning_rate": 1e-4,
            "rollout_correction": {"rollout_is": "token"},
            "verl": {
                "actor": {"ppo_epochs": 2, "policy_loss": {"loss_mode": "dro", "dro_beta": 0.5}},
                "algorithm.rollout_correction.rollout_is_threshold": 3.0,
            },
        }
    )
    assert (numbers.ppo_epochs, numbers.loss_mode) == (2, "dro")
    assert numbers.rollout_correction == {"rollout_is": "token", "rollout_is_threshold": 3.0}
    assert numbers.verl == {"actor.policy_loss.dro_beta": 0.5}
    assert parse_hyperparameters(numbers.model_dump(exclude_unset=True)) == numbers


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"learning_rat": 1}, "learning_rat: Extra inputs"),
        ({"learning_rate": -1}, r"learning_rate: .*greater than or equal to 0 \(given: -1\)"),
        ({"loss_agg_mode": "mean"}, "loss_agg_mode"),
        ({"loss_mode": "vanila"}, "loss_mode: Input should be 'vanilla'"),
        ({"kl_loss_type": "k4"}, "kl_loss_type"),
        ({"loss_mode": "dro"}, "needs `verl.actor.policy_loss.dro_beta`"),
        ({"mini_batch_size": 2, "mini_batches": 2}, "not both"),
        ({"ppo_epochs": 2, "verl": {"actor.ppo_epochs": 2}}, "set that alone"),
        ({"rollout_correction": {"rollout_iss": "token"}}, "rollout_iss"),
    ],
)
def test_an_invalid_hyperparameter_is_named(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_hyperparameters(data)


RATIOS = {"rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "0.5_2.0,3"}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"loss_mode": "geo_mean", "loss_agg_mode": "token-mean"}, r"algorithm\.loss_agg_mode: `token-mean` would do"),
        ({"loss_mode": "sapo", "loss_agg_mode": "seq-mean-token-sum"}, "write `seq-mean-token-mean`"),
        ({"loss_mode": "gpg", "clip_ratio": 0.3}, r"algorithm\.clip_ratio: 0\.3 would do nothing .* `gpg`"),
        ({"verl": {"actor.tau_pos": 2.0}}, r"verl\.actor\.tau_pos: 2\.0 would do nothing to the policy loss `vanilla`"),
        ({"loss_mode": "sapo", "verl": {"actor.tau_pos": 0}}, r"verl\.actor\.tau_pos: 0 must be more than 0"),
        ({"verl": {"actor.clip_ratio_c": 0.5}}, r"verl\.actor\.clip_ratio_c: 0\.5 must be more than 1"),
        (
            {"verl": {"actor.loss_scale_factor": 9}},
            "without `algorithm.loss_agg_mode: seq-mean-token-su",
        ),
        (
            {"loss_mode": "clip_cov", "verl": {"actor.policy_loss.clip_cov_lb": 6}},
            "6 must be less than `clip_cov_ub`",
        ),
        (
            {"verl": {"actor.kl_loss_coef": 0.1}},
            r"would do nothing without `verl\.actor\.use_kl_loss",
        ),
        (
            {"verl": {"actor.ppo_max_token_len_per_gpu": 9}},
            "nothing without `verl.actor.use_dynamic_bsz: true`",
        ),
        ({"verl": {"actor.optim.betas": [0.9, 1.0]}}, r"betas: \[0\.9, 1\.0\] must both be"),
        ({"verl": {"actor.fsdp_config.strategy": "ddp"}}, "'ddp' must be `fsdp` or `fsdp2`"),
        (
            {"loss_mode": "gspo", "rollout_correction": {"bypass_mode": True}},
            r"`gspo` would do nothing beside",
        ),
        (
            {"rollout_correction": {"loss_type": "reinforce"}},
            "'reinforce' would do nothing without `bypass_mode",
        ),
        ({"rollout_correction": {"bypass_mode": True, "loss_type": "ppo"}}, "'ppo' must be `ppo_clip` or `reinforce`"),
        (
            {"rollout_correction": {"bypass_mode": True, "rollout_is": "token"}},
            "'token' would do nothing in bypass",
        ),
        ({"rollout_correction": {"rollout_is": "tokens"}}, "rollout_is: 'tokens' must be `token`, `sequence` or null"),
        (
            {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "2_1"}},
            "'2_1' must be a positive",
        ),
        ({"rollout_correction": {"rollout_is_threshold": 3.0}}, "3.0 would do nothing without `rollout_is`"),
        ({"rollout_correction": {"rollout_rs": "nonsense"}}, "'nonsense' must be of token_k1, token_k2"),
        ({"rollout_correction": {"rollout_rs": "token_k1"}}, "rollout_rs_threshold: None must be one threshold"),
        ({"rollout_correction": {"rollout_rs_threshold": 2.0}}, "2.0 would do nothing without `rollout_rs`"),
        (
            {"rollout_correction": RATIOS | {"rollout_rs_threshold": "0.5_2.0"}},
            "'0.5_2.0' must be a positive number",
        ),
        (
            {"rollout_correction": {"bypass_mode": True, "loss_type": "reinforce", "rollout_is_batch_normalize": True}},
            "in bypass mode it would be by micro-batch",
        ),
        (
            {"rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0_3"}},
            "'0.5_2.0_3' must be 1 or more, or two numbers",
        ),
        (
            {"clip_ratio": 0.3, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
            r"algorithm\.clip_ratio: 0\.3 would do nothing beside `clip_ratio_low` and",
        ),
        (
            {"verl": {"actor.use_dynamic_bsz": True, "actor.ppo_micro_batch_size_per_gpu": 4}},
            r"ppo_micro_batch_size_per_gpu would do nothing beside `verl\.actor\.use_dynamic_bsz: true`",
        ),
        (
            {"verl": {"actor.optim.optimizer": "SGD", "actor.optim.betas": [0.8, 0.9]}},
            r"betas: \[0\.8, 0\.9\] would do nothing to `SGD`",
        ),
        (
            {"verl": {"actor.optim.override_optimizer_config": {"eps": 1e-6, "lr": 0.1}}},
            r"override_optimizer_config\.lr: 0\.1 would do nothing: `algorithm\.learning_rate` decides",
        ),
        (
            {"verl": {"actor.optim.override_optimizer_config": {"epss": 1e-6}}},
            r"override_optimizer_config\.epss: `AdamW` has no such argument; did you mean `eps`\?",
        ),
        (
            {"verl": {"actor.optim": {"optimizer": "SGD", "override_optimizer_config": {"amsgrad": True}}}},
            r"override_optimizer_config\.amsgrad: `SGD` has no such argument; it has `momentum`, `dampening`",
        ),
        (
            {"loss_mode": "kl_cov", "verl": {"actor.policy_loss.kl_cov_ratio": 1.5}},
            r"kl_cov_ratio: 1\.5 must be more than 0 and at most 1",
        ),
        (
            {"loss_mode": "clip_cov", "verl": {"actor.policy_loss.clip_cov_ratio": 5}},
            r"clip_cov_ratio: 5 must be more than 0 and at most 1",
        ),
        (
            {"verl": {"model.fused_kernel_options": {"impl_backend": "torch"}}},
            r"would do nothing without `verl\.model\.use_fused_kernels: true`",
        ),
        (
            {"verl": {"actor.fsdp_config.use_orig_params": True}},
            r"True would do nothing without `verl\.actor\.fsdp_config\.strategy: fsdp`",
        ),
    ],
)
def test_keys_without_effect_or_in_conflict_with_others_are_refused(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_hyperparameters(data)


@pytest.mark.parametrize(
    ("verl", "complaint"),
    [
        (
            {"actor.optim.optimizer": "AdamV"},
            r"optimizer: 'AdamV' .* of `torch\.optim`; did you mean `Adam",
        ),
        ({"actor.optim.optimizer": "LBFGS"}, r"actor\.optim\.optimizer: 'LBFGS' must be `Adafactor`, "),
        ({"actor.optim.optimizer_impl": "torch.optimm"}, r"'torch\.optimm' must be .*`torch\.optim`\?"),
        (
            {"actor.optim.optimizer_impl": "torchao.optim"},
            r"'AdamW' must be `_AdamW`, .* of `torchao\.optim`",
        ),
        ({"actor.fsdp_config.model_dtype": "bf17"}, r"model_dtype: 'bf17' must be `fp32`, .*did you mean `bf16`"),
        (
            {"actor.fsdp_config.mixed_precision": {"param_dtype": "half"}},
            r"param_dtype: 'half' must be",
        ),
        (
            {"actor.fsdp_config.mixed_precision": {"dtype": "bf16"}},
            r"\.dtype: verl has no such key there",
        ),
        (
            {"actor.fsdp_config.mixed_precision": {"buffer_dtype": "fp32"}},
            "'fp32' would do nothing without",
        ),
        ({"actor.fsdp_config.wrap_policy": {"min_params": 1}}, r"wrap_policy\.min_params: verl has no such key there"),
        ({"model.override_config": {"attn_implementation": "spda"}}, r"'spda' must be .* did you mean `sdpa`"),
        (
            {"model.use_fused_kernels": True},
            r"needs `verl\.model\.fused_kernel_options\.impl_backend`",
        ),
        (
            {"model.use_fused_kernels": True, "model.fused_kernel_options": {"impl_backend": "cuda"}},
            r"impl_backend: 'cuda' must be `torch`, `triton` or `liger`",
        ),
    ],
)
def test_a_name_that_verl_would_look_up_when_the_trainer_starts_is_refused_with_the_run_file(
    verl: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_run_file(run_file(verl=verl))


@pytest.mark.parametrize(
    "data",
    [
        {"verl": {"actor.optim.optimizer": "Adafactor", "actor.fsdp_config.model_dtype": "bfloat16"}},
        {"verl": {"actor.optim": {"optimizer": "PagedAdamW8bit", "optimizer_impl": "bitsandbytes.optim"}}},
        {"verl": {"actor.fsdp_config.mixed_precision": {"param_dtype": "bf16", "reduce_dtype": 32}}},
        {"verl": {"model.override_config": {"attn_implementation": "kernels-community/flash-attn2"}}},
        {"rollout_correction": RATIOS},
        {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}},
        {"rollout_correction": {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "sequence"}},
        {"loss_mode": "sapo", "verl": {"actor.tau_pos": 2.0}},
        {"clip_ratio": 0.3, "clip_ratio_high": 0.28},
        {"verl": {"actor.fsdp_config.strategy": "fsdp", "actor.fsdp_config.use_orig_params": True}},
        {"verl": {"actor.fsdp_config.offload_policy": True}},
        {"loss_mode": "kl_cov", "verl": {"actor.policy_loss.kl_cov_ratio": 1.0}},
        {"verl": {"actor.optim": {"optimizer": "SGD", "override_optimizer_config": {"momentum": 0.9}}}},
        {
            "verl": {
                "actor.optim": {
                    "optimizer": "_AdamW",
                    "optimizer_impl": "torchao.optim",
                    "override_optimizer_config": {"bf16_stochastic_round": True},
                }
            }
        },
        {"loss_agg_mode": "seq-mean-token-sum-norm", "verl": {"actor.loss_scale_factor": 9}},
    ],
)
def test_keys_with_an_effect_are_accepted(data: dict[str, Any]) -> None:
    assert parse_hyperparameters(data)


def test_the_defaults_need_no_key() -> None:
    assert parse_hyperparameters({}) == Hyperparameters()


def test_vllm_keys_become_flags() -> None:
    keys = {"max-num-seqs": 8, "enforce_eager": False, "hf_overrides": {"a": 1}, "dtype": None}
    assert vllm_flags(keys) == ["--max-num-seqs", "8", "--no-enforce-eager", "--hf-overrides", '{"a":1}']


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("max_num_seq", r"vllm\.max_num_seq: vLLM .* did you mean `max_num_seqs`"),
        ("nonsense", r"vllm\.nonsense: vLLM 0\.24\.0 has no such argument"),
        ("port", r"vllm\.port: not to be set here: engines listen on a unix socket only"),
        ("ssl-keyfile", r"vllm\.ssl-keyfile: not to be set here: engines listen on a unix socket only"),
        ("revision", r"vllm\.revision: not to be set here: engines load what the run file's `model` names"),
        ("logprobs-mode", r"vllm\.logprobs-mode: not to be set here"),
    ],
)
def test_a_vllm_key_that_cannot_be_passed_on_is_named(key: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engine_command(Path("m"), Path("s"), {key: 1}, cpu=True)


def test_the_run_files_keys_override_the_defaults_for_a_cpu() -> None:
    command = engine_command(Path("m"), Path("s"), {"dtype": "bfloat16"}, cpu=True, max_model_len=64)
    pairs = dict(itertools.pairwise(command))
    assert (pairs["--dtype"], pairs["--max-model-len"], pairs["--uds"]) == ("bfloat16", "64", "s")
    assert command.count("--dtype") == 1
    assert "--dtype" not in engine_command(Path("m"), Path("s"), {}, cpu=False)
    assert {"--logprobs-mode", "processed_logprobs"} <= set(engine_command(Path("m"), Path("s"), {}, cpu=False))


def test_the_table_of_vllms_arguments_is_that_of_the_vllm_that_is_installed() -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "vllm_keys.py"))
    table = script["make_table"]()
    if table is None:
        pytest.skip("vLLM is not installed here")
    assert VllmKeys(table["version"], frozenset(table["keys"]), table["choices"]) == known_keys(), (
        "run scripts/vllm_keys.py"
    )


def run_file(**more: Any) -> dict[str, Any]:
    return {"agent": "a", "model": "m", "data": "t.jsonl", "steps": 10} | more


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (
            {"vllm": {"max_num_seq": 8}},
            r"vllm\.max_num_seq: vLLM 0\.24\.0 has no such argument; did you mean `max_num_s",
        ),
        ({"vllm": {"max-model-len": 8, "max_model_len": 9}}, r"vllm\.max_model_len: given twice"),
        (
            {"vllm": {"dtype": "bflot16"}},
            r"vllm\.dtype: 'bflot16' must be one of auto, .*did you mean `bfloat16`",
        ),
        ({"vllm": {"kv-cache-dtype": "int8"}}, r"vllm\.kv-cache-dtype: 'int8' must be one of auto, float16"),
        ({"verl": {"actor.clip_ratio_c": 0.5}}, r"verl\.actor\.clip_ratio_c: 0\.5 must be more than 1"),
        ({"algorithm": {"rollout_correction": {"rollout_rs": "nonsense"}}}, "rollout_rs: 'nonsense' must be of"),
        ({"algorithm": {"name": "remax"}}, r"algorithm\.name: Input should be .*given: 'remax'"),
        (
            {"verl": {"actor.ppo_mini_batch_size": 17}},
            "ppo_mini_batch_size`: 17 is more than `batch_size`, 16",
        ),
        (
            {"verl": {"actor.ppo_mini_batch_size": 4}, "algorithm": {"mini_batches": 2}},
            "ppo_mini_batch_size: 4 beside `algorithm.mini_batches: 2`: give one of them",
        ),
        ({"verl": {"actor.optim.lr_scheduler_type": "linear"}}, "'linear' must be `constant` or `cosine`"),
        ({"verl": {"actor.optim.num_cycles": 1}}, "num_cycles would do nothing without `lr_scheduler_type: cosine`"),
        ({"verl": {"actor.optim.lr_warmup_steps_ratio": 1.5}}, "lr_warmup_steps_ratio: 1.5 must be between 0 and 1"),
        ({"verl": {"actor.optim.total_training_steps": 9}}, "would do nothing to a constant learning rate"),
        (
            {"verl": {"algorithm.norm_adv_by_std_in_grpo": False}, "algorithm": {"name": "rloo"}},
            "norm_adv_by_std_in_grpo: False would do nothing to `algorithm.name: rloo`",
        ),
    ],
)
def test_a_run_file_with_keys_that_engine_or_trainer_would_ignore_is_refused(
    more: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_run_file(run_file(**more))


def test_a_plan_resolves_verls_mini_batch_size_and_learning_rate_schedule() -> None:
    verl = {"actor": {"ppo_mini_batch_size": 4, "optim": {"lr_warmup_steps": 4, "lr_scheduler_type": "cosine"}}}
    file = parse_run_file(run_file(group_size=5, algorithm={"learning_rate": 0.8}, verl=verl))
    rates: list[float] = []
    for step in range(1, 11):
        plan = resolve_plan(file, {}, step, rows=20, stream_start=0, total_steps=10)
        given = trainer_numbers(
            plan.algorithm, plan.sampling.temperature, plan.verl, plan.group_size, plan.scheduled_rate
        )
        numbers = parse_hyperparameters(given)
        assert numbers.mini_batch_size == 20
        rates.append(numbers.learning_rate)
    assert rates[:6] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 0.8 * (0.5 + 0.5 * math.cos(math.pi / 6))])
    assert rates[5:] == sorted(rates[5:], reverse=True)
