"""Attacks on a GPU host by a run file: no key of vLLM's or verl's reaches its code, files or addresses."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from relight.errors import ConfigError
from relight.gpu_worker.engine import engine_command
from relight.settings import resolve
from relight.types.run_file import parse_run_file
from relight.types.verl_keys import CODE_KEYS, KNOWN_KEYS, merged_startup_keys
from relight.types.vllm_keys import known_keys, rights

NOT_IN_A_RUN_FILE = "not to be set in a run file"
VLLM: list[tuple[str, Any]] = [
    ("middleware", "os.system"),
    ("middleware", ["os.system"]),
    ("worker_cls", "evil.Worker"),
    ("worker-extension-cls", "evil.Extension"),
    ("scheduler_cls", "evil.Scheduler"),
    ("logits_processors", ["evil:Processor"]),
    ("tool_parser_plugin", "/tmp/evil.py"),
    ("reasoning_parser_plugin", "/tmp/evil.py"),
    ("io_processor_plugin", "evil"),
    ("trust_remote_code", True),
    ("hf_overrides", {"auto_map": {"AutoConfig": "evil.Config"}}),
    ("model_loader_extra_config", {"tensorizer_uri": "/tmp/x"}),
    ("kv_transfer_config", {"kv_connector_module_path": "evil"}),
    ("compilation_config", {"backend": "evil.compile"}),
    ("additional_config", {"x": 1}),
    ("log_config_file", "/tmp/evil.json"),
    ("load_format", "pt"),
    ("load_format", "tensorizer"),
    ("distributed_executor_backend", "evil.Executor"),
    ("distributed_executor_backend", "ray"),
    ("speculative_config", {"method": "eagle", "model": "/tmp/evil"}),
    ("speculative_config", {"method": "medusa"}),
    ("speculative_config", '{"model": "/tmp/evil"}'),
    ("spec_model", "/tmp/evil"),
    ("structured_outputs_config", {"reasoning_parser_plugin": "/tmp/evil.py"}),
    ("default_chat_template_kwargs", {"chat_template": "/etc/passwd"}),
    ("allowed_local_media_path", "/"),
    ("chat_template", "/etc/passwd"),
    ("download_dir", "/tmp"),
    ("hf_config_path", "/tmp/evil"),
    ("tokenizer", "/tmp/evil"),
    ("generation_config", "/etc"),
    ("lora_modules", ["x=/tmp/evil"]),
    ("otlp_traces_endpoint", "http://evil"),
    ("kv_events_config", {"endpoint": "tcp://*:1"}),
    ("tool_server", "evil:1"),
    ("quantization", "evil.Quantization"),
    ("seed", "--trust-remote-code"),
    ("cudagraph_capture_sizes", [1, "--middleware", "evil"]),
    ("lora_target_modules", ["q_proj", "--worker-cls=evil"]),
    ("max_model_len", {"a": 1}),
    ("max_model_len", [[1]]),
    ("max_num_seqs", [8, "evil"]),
    ("cudagraph_capture_sizes", [[1]]),
]
VERL: list[dict[str, Any]] = [
    {"model": {"trust_remote_code": True}},
    {"actor_rollout_ref.model.trust_remote_code": True},
    {"model.override_config": {"auto_map": {"AutoModel": "evil.Model"}}},
    {"model.override_config": {"attn_implementation": "evil/kernel"}},
    {"model.override_config": {"quantization_config": {"quant_method": "evil"}}},
    {"model.override_config": {"architectures": ["Evil"]}},
    {"model.override_config": {"rope_scaling": {"_target_": "os.system"}}},
    {"actor.optim.override_optimizer_config": {"eps": {"_target_": "os.system"}}},
    {"model.external_lib": "evil"},
    {"model.path": "/tmp/evil"},
    {"model.custom_chat_template": "{{ x }}"},
    {"actor.fsdp_config": {"_target_": "os.system"}},
    {"reward_model": {"path": "/tmp/evil"}},
    {"custom_reward_function": {"path": "/tmp/evil.py"}},
    {"data.custom_cls.path": "/tmp/evil.py"},
    {"_target_": "os.system"},
]


def run_file(**more: Any) -> dict[str, Any]:
    return {"agent": "a", "model": "m", "data": "t.jsonl", "steps": 10} | more


@pytest.mark.parametrize(("key", "value"), VLLM)
def test_a_run_file_sets_no_argument_of_vllm_that_reaches_the_gpu_host(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"vllm\.{key}[.\w]*: (not to be set in a run file|.* is not an object)"):
        parse_run_file(run_file(vllm={key: value}))
    with pytest.raises(ConfigError, match=rf"vllm\.{key}"):  # of a run that an older release has stored
        engine_command(Path("m"), Path("s"), {key: value}, cpu=True)


@pytest.mark.parametrize("keys", VERL)
def test_a_run_file_sets_no_key_of_verl_that_reaches_the_gpu_host(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"verl\."):
        parse_run_file(run_file(verl=keys))
    with pytest.raises(ConfigError, match=r"verl\."):
        merged_startup_keys(keys, {})


def test_a_run_file_sets_what_reaches_nothing() -> None:
    vllm = {
        "max-model-len": 128,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.5,
        "kv_cache_memory_bytes": "1.5G",
        "enforce_eager": True,
        "quantization": "compressed-tensors",
        "cudagraph_capture_sizes": [1, 2],
        "load_format": "dummy",
        "limit_mm_per_prompt": {"image": 0},
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "override_generation_config": None,
    }
    verl = {
        "model.override_config": {"attn_implementation": "eager", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        "actor.optim": {"optimizer_impl": "torchao.optim", "optimizer": "_AdamW"},
        "actor.fsdp_config.wrap_policy": {"transformer_layer_cls_to_wrap": ["Layer"]},
    }
    assert parse_run_file(run_file(vllm=vllm, verl=verl)).model_dump()["vllm"] == vllm


def test_each_argument_of_vllm_is_allowed_or_refused_for_a_reason() -> None:
    table = rights()
    groups = [
        table.allowed,
        table.allowed_lists,
        table.allowed_values,
        table.allowed_fields,
        table.managed,
        *table.refused.values(),
    ]
    named = [name for group in groups for name in group if "." not in name]
    assert sorted(named) == sorted(known_keys().names | {"model_tag"}), "say in vllm_rights.json who may set it"
    assert set(table.refused) == {"code", "files", "network"}


def test_each_field_of_verls_model_is_allowed_or_refused() -> None:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed here")
    folder = Path(spec.submodule_search_locations[0]) / "workers" / "config"
    classes = {
        node.name: node
        for path in (folder / "model.py", folder / "actor.py", folder / "engine.py", folder / "optimizer.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    sections = {"HFModelConfig": "model", "FSDPEngineConfig": "actor.fsdp_config", "FSDPActorConfig": "actor"}
    tried = 0
    for name, section in sections.items():
        for item in classes[name].body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                key = f"{section}.{item.target.id}"
                tried += 1
                if key not in KNOWN_KEYS or key in CODE_KEYS:
                    with pytest.raises(ConfigError, match=r"verl\."):
                        parse_run_file(run_file(verl={key: True}))
    assert tried > 30


def test_the_gpu_workers_own_keys_may_be_others_and_lie_over_the_run_files() -> None:
    environ = {
        "RELIGHT_GPU_VLLM": '{"trust-remote-code": true, "max_num_seqs": 8, "hf_overrides": {"a": "b/c"}}',
        "RELIGHT_GPU_VERL": '{"model": {"trust_remote_code": true}}',
    }
    settings = resolve({}, environ).settings
    command = engine_command(
        Path("m"), Path("s"), {"max-num-seqs": 4, "dtype": "half"}, own_keys=settings.gpu_vllm, cpu=True
    )
    text = " ".join(command)
    assert "--trust-remote-code" in command
    assert "--max-num-seqs 8" in text
    assert "--dtype half" in text
    assert command.count("--max-num-seqs") == 1
    assert merged_startup_keys({"actor.clip_ratio": 0.1}, settings.gpu_verl) == {"model.trust_remote_code": True}


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("RELIGHT_GPU_VLLM", '{"port": 1}', r"vllm\.port: not to be set here: engines listen on a unix socket only"),
        ("RELIGHT_GPU_VLLM", '{"middlewares": 1}', r"vllm\.middlewares: .* did you mean `middleware`"),
        ("RELIGHT_GPU_VERL", '{"actor.clip_ratio": 0.1}', r"not read when a trainer starts: set it in the run file"),
    ],
)
def test_a_gpu_workers_own_key_that_is_wrong_is_named_with_its_setting(
    variable: str, value: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=rf"from environment {variable}.*{complaint}"):
        resolve({}, {variable: value})


def test_a_key_of_verls_that_the_gpu_worker_sets_too_is_refused_in_the_run_file() -> None:
    own = {"model.override_config": {"attn_implementation": "eager"}}
    with pytest.raises(
        ConfigError, match=r"verl\.model\.override_config: RELIGHT_GPU_VERL of the GPU worker sets it too"
    ):
        merged_startup_keys({"model.override_config": {"use_cache": False}}, own)
