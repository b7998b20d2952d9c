"""A model directory that can't be served is found out before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relight.errors import ModelError
from relight.models import check_model


def make_model(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "qwen2"}')
    header = b'{"__metadata__": {}}'
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (path / "tokenizer.json").write_text("{}")
    return path


def test_a_complete_directory_passes_and_is_resolved(tmp_path: Path) -> None:
    make_model(tmp_path / "policy")
    assert check_model("policy", tmp_path) == tmp_path / "policy"
    assert check_model(str(tmp_path / "policy"), "/nowhere") == tmp_path / "policy"


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct", "gpt2"])
def test_a_hub_name_passes_as_it_is(tmp_path: Path, name: str) -> None:
    assert check_model(name, tmp_path) == name


@pytest.mark.parametrize("name", ["models/a/b", "./policy", "/no/such/model", "~/nothing-here"])
def test_a_path_without_a_directory_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="there is no directory /"):
        check_model(name, tmp_path)


@pytest.mark.parametrize(
    ("missing", "message"),
    [("config.json", r"no config\.json"), ("model.safetensors", "no weights"), ("tokenizer.json", "no tokenizer")],
)
def test_each_missing_part_is_named_with_what_is_needed(tmp_path: Path, missing: str, message: str) -> None:
    (make_model(tmp_path / "policy") / missing).unlink()
    with pytest.raises(ModelError, match=message) as raised:
        check_model("policy", tmp_path)
    assert "a model directory holds" in raised.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is truncated"),
        (b"abc", "is truncated"),
        ((10**9).to_bytes(8, "little") + b"{}", "is truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_missing_weights_are_found(tmp_path: Path, content: bytes, message: str) -> None:
    (make_model(tmp_path / "policy") / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        check_model("policy", tmp_path)


def test_a_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    path = make_model(tmp_path / "policy")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names model-2\.safetensors"):
        check_model("policy", tmp_path)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"1")
    with pytest.raises(ModelError, match="is a file"):
        check_model("weights.bin", tmp_path)


@pytest.mark.parametrize(("config", "message"), [("{", "JSON"), ("[]", "not a JSON object"), ("{}", "neither")])
def test_an_empty_config_is_an_error(tmp_path: Path, config: str, message: str) -> None:
    (make_model(tmp_path / "policy") / "config.json").write_text(config)
    with pytest.raises(ModelError, match=message):
        check_model("policy", tmp_path)
