"""A run file that can't work gets one message that says what, where and the mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.cli.run_check import (
    apply_override,
    check_run,
    check_run_name,
    name_stem,
    next_name,
    read_run_file,
)
from relight.errors import ConfigError, DatasetError, ModelError, RelightError
from relight.types.names import RUN_NAME
from relight.types.run_file_differences import differing_keys
from tests.unit.test_models import make_model

GOOD: dict[str, Any] = {
    "agent": "calculator",
    "model": "policy",
    "data": {"train": "train.jsonl", "evaluation": "heldout.jsonl", "required_fields": ["question"]},
    "evaluation": {"every": 5},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_model(tmp_path / "policy")
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?"}\n' * 3)
    (tmp_path / "heldout.jsonl").write_text('{"question": "2+2?"}\n')
    return tmp_path


def write(root: Path, changes: dict[str, Any] | None = None) -> Path:
    path = root / "run.json"
    path.write_text(json.dumps(GOOD | (changes or {})))
    return path


def test_a_good_file_passes(root: Path) -> None:
    file = check_run(write(root), root)
    assert (file.agent, file.data.train) == ("calculator", "train.jsonl")


def test_a_set_in_the_store_is_not_looked_for_on_disk(root: Path) -> None:
    assert check_run(write(root, {"data": "dataset:abc", "evaluation": {}}), root).data.train == "dataset:abc"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"bach_size": 4}, ConfigError, "bach_size: unknown key; `relight schema` lists the known ones (did you mean"),
        ({"evaluation": {"evry": 2}}, ConfigError, "evaluation.evry: unknown key; `relight schema` lists the known"),
        ({"models": {"policy": "judge"}}, ConfigError, "`models` can't give 'policy' another meaning"),
        ({"models": {"a": "b", "b": "policy"}}, ConfigError, "`models.a` names 'b', which `models` replaces itself"),
        ({"algorithm": {"lr": 1}}, ConfigError, "algorithm.lr: unknown key"),
        ({"group_size": "many"}, ConfigError, "group_size: Input should be a valid integer"),
        ({"group_size": 1}, ConfigError, "`group_size` must be 2 or more"),
        ({"batch_size": 20_000, "group_size": 8}, ConfigError, "160000 rollouts a step"),
        ({"epochs": 1, "steps": 2}, ConfigError, "give `epochs` or `steps`, not both"),
        ({"data": "train.jsonl"}, ConfigError, "`evaluation.every` needs `data.evaluation`"),
        ({"data": {"train": "gone.jsonl"}, "evaluation": {}}, DatasetError, "there is no file"),
        (
            {"data": {"train": "train.jsonl", "required_fields": ["answer"]}, "evaluation": {}},
            DatasetError,
            "train.jsonl, row 1: field 'answer' is missing",
        ),
        ({"model": "./nothing"}, ModelError, "there is no directory"),
    ],
)
def test_each_fault_gets_one_line_that_names_it(
    root: Path, changes: dict[str, Any], kind: type[RelightError], message: str
) -> None:
    path = write(root, changes)
    with pytest.raises(kind) as raised:
        check_run(path, root)
    assert message in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"bach_size": 4}, "batch_size"),
        ({"evaluation": {"evry": 2}}, "every"),
        ({"algorithm": {"learning_rte": 1}}, "learning_rate"),
        ({"upstreams": [{"name": "a", "base_url": "http://a", "model": ["m"]}]}, "models"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_that_was_meant(
    root: Path, changes: dict[str, Any], meant: str
) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean `{meant}`\?"):
        check_run(write(root, changes), root)


def test_a_name_that_hides_a_providers_model_is_refused(root: Path) -> None:
    provider = {"name": "openai", "base_url": "https://api.openai.com/v1", "models": ["gpt-4o-mini"]}
    with pytest.raises(ConfigError, match=r"`models\.gpt-4o-mini` would hide the model .* of provider 'openai'"):
        check_run(write(root, {"upstreams": [provider], "models": {"gpt-4o-mini": "policy"}}), root)


def test_a_fault_of_the_held_out_set_is_found_too(root: Path) -> None:
    (root / "heldout.jsonl").write_text('{"answer": 4}\n')
    with pytest.raises(DatasetError, match=r"heldout\.jsonl, row 1"):
        check_run(write(root), root)


def test_without_the_files_the_keys_are_still_checked(root: Path) -> None:
    (root / "train.jsonl").unlink()
    assert check_run(write(root), root, files=False).data.train == "train.jsonl"
    with pytest.raises(ConfigError):
        check_run(write(root, {"x": 1}), root, files=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{\n 'a': 1}", "line 2, column 2"), ("[]", "one JSON object"), ("\xff", "not JSON")],
)
def test_a_file_that_is_no_json_object_is_named_with_the_position(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as raised:
        read_run_file(path)
    assert str(path) in raised.value.message


def test_a_missing_run_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.json: the run file does not exist"):
        read_run_file(tmp_path / "nope.json")


def test_overrides_reach_into_sections_and_keep_their_types(root: Path) -> None:
    file = read_run_file(
        write(root, {"data": "train.jsonl", "evaluation": {}}),
        ["algorithm.learning_rate=3e-4", "steps=2", "data.evaluation=heldout.jsonl", "vllm.max_model_len=128"],
    )
    assert file.algorithm.learning_rate == 3e-4
    assert (file.steps, file.data.evaluation, file.vllm) == (2, "heldout.jsonl", {"max_model_len": 128})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "steps: give it as key=value"),
        ("=3", "=3: give it as key=value"),
        ("agent.name=x", "agent is not a section"),
    ],
)
def test_an_override_of_an_unknown_key_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_override({"agent": "calculator"}, override)


def test_an_unknown_key_by_override_is_an_error_that_names_it(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.lr: unknown key"):
        read_run_file(write(root), ["algorithm.lr=1"])


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "a" * 64, "a b"])
def test_a_bad_run_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="run name"):
        check_run_name(name)


@given(folder=st.text(min_size=1, max_size=90).filter(lambda text: "/" not in text and "\0" not in text))
def test_a_default_name_is_always_one_that_a_run_can_have(folder: str) -> None:
    name = next_name(name_stem(Path("/somewhere") / folder / "run.json"), [])
    assert RUN_NAME.fullmatch(name)
    assert check_run_name(name) == name


def test_the_default_name_has_the_next_number_after_the_highest() -> None:
    assert next_name("calculator", []) == "calculator-1"
    assert next_name("calculator", ["calculator-9", "calculator-10", "calculator-x", "other-99"]) == "calculator-11"


def test_differing_keys_are_named_with_their_sections() -> None:
    one = {"a": 1, "data": {"train": "x", "shuffle": True}, "gone": 1}
    other = {"a": 1, "data": {"train": "y", "shuffle": True}, "new": 2}
    assert differing_keys(one, other) == ["data.train", "gone", "new"]
    assert differing_keys(one, one) == []


@given(values=st.lists(st.sampled_from([True, False, 0, 1, 1.0, None, "1", {}, []]), min_size=2, max_size=2))
def test_a_key_differs_wherever_its_json_does(values: list[Any]) -> None:
    one, other = ({"verl": {"key": value}} for value in values)
    differ = json.dumps(one) != json.dumps(other)
    assert differing_keys(one, other) == (["verl.key"] if differ else [])
    assert differing_keys(one, {"verl": {}}) == ["verl.key"]
