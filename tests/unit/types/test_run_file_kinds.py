"""What kind of run file it is, is decided by `algorithm.name`; keys of other kinds are refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from relight.errors import ConfigError
from relight.types.run_file import (
    AnyRunFile,
    RunFile,
    Section,
    known_keys,
    parse_kind,
    parse_run_file,
)
from relight.types.run_file_differences import differences
from relight.types.run_file_schema import json_schema


class PromptAlgorithm(Section):
    name: Literal["prompts"]
    beam: int = 4


class PromptFile(AnyRunFile):
    """A kind of run without a model and without groups, whose algorithm may also be null."""

    algorithm: PromptAlgorithm | None
    rounds: int = 3


KINDS: list[type[AnyRunFile]] = [RunFile, PromptFile]
BASE = {"agent": "calculator", "data": "train.jsonl"}
PROMPTS = BASE | {"algorithm": {"name": "prompts"}}


def test_the_algorithms_name_decides_the_kind_and_the_first_kind_is_the_default() -> None:
    assert type(parse_kind(PROMPTS, KINDS)) is PromptFile
    assert type(parse_kind(BASE | {"model": "m"}, KINDS)) is RunFile
    assert type(parse_kind(BASE | {"model": "m", "algorithm": {"name": "rloo"}}, KINDS)) is RunFile


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        (
            PROMPTS | {"model": "m"},
            r"model: only with `algorithm\.name` 'grpo', .* or 'opo': leave it out, or",
        ),
        (PROMPTS | {"group_size": 4}, r"group_size: only with `algorithm\.name` 'grpo'"),
        (
            BASE | {"algorithm": {"name": "prompts", "learning_rate": 1}},
            r"algorithm\.learning_rate: only with `algorithm\.name` 'grpo'",
        ),
        (BASE | {"model": "m", "rounds": 2}, r"run file: rounds: only with `algorithm\.name` 'prompts': leave it out"),
        (PROMPTS | {"bach_size": 4}, "bach_size: unknown key"),
        (PROMPTS | {"data": {"train": "t", "beam": 1}}, r"data\.beam: unknown key"),
        (PROMPTS | {"grader": "agent"}, "`grader` can't be called 'agent'"),
        (
            BASE | {"algorithm": {"name": "ppo"}},
            r"name: Input should be .*'opo' or 'prompts' \(given: 'ppo'\)",
        ),
    ],
)
def test_keys_of_another_kind_are_refused_with_the_algorithms_that_have_them(
    file: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_kind(file, KINDS)


def test_a_kind_in_the_one_list_is_parsed_known_compared_and_in_the_schema() -> None:
    parsed: Any = parse_kind(PROMPTS | {"rounds": 4}, KINDS)
    assert isinstance(parsed, PromptFile)
    assert known_keys(PROMPTS | {"rounds": 4, "cursor": None, "group_size": 2}, KINDS) == PROMPTS | {"rounds": 4}
    assert differences(parsed, PromptFile.model_validate(PROMPTS | {"rounds": 5})) == "rounds"
    assert {"RunFile", "PromptFile"} <= json_schema(KINDS)["$defs"].keys()
    with pytest.raises(ConfigError, match=r"round: unknown key.*did you mean `rounds`"):
        parse_kind(PROMPTS | {"round": 4}, KINDS)


@pytest.mark.parametrize("file", ["x", [], None, 3])
def test_a_file_that_is_no_object_is_told_what_it_must_be(file: object) -> None:
    with pytest.raises(ConfigError, match=r"^run file: must be an object \(given: .*`relight schema`"):
        parse_run_file(file)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"algorithm": "grpo"}, r"algorithm: must be an object \(given: 'grpo'\)"),
        ({"seed": 2**63}, r"seed: .*less than 9223372036854775808 \(given: 9223372036854775808\)"),
        ({"steps": 2**31}, r"steps: must be an integer of 32 bits"),
        ({"group_size": True}, r"group_size: must be a number.*\(given: true\)"),
        ({"sampling": {"temperature": True}}, r"sampling\.temperature: must be a number"),
        ({"failures": {"rewards": {"timeout": False}}}, r"failures\.rewards: must be a number"),
        ({"failures": {"pause_above": True}}, r"failures\.pause_above\.agent: must be a number"),
        ({"rollout": {"max_attempts": 2001}}, r"rollout\.max_attempts: .*less than or equal to 2000 \(given: 2001\)"),
        ({"rollout": {"max_attempts": True}}, r"rollout\.max_attempts: must be a number"),
        ({"resources": {"x": 1}}, r"resources: x: must be an object \(given: 1\)"),
        ({"resources": {"x": {"resource_type": "prompt_template"}}}, r"resources: x\..*template: missing"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_with_its_key(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_run_file(BASE | {"model": "m"} | changes)


def test_the_largest_seed_and_memory_limit_and_a_switch_are_taken() -> None:
    rollout = {"memory_limit_bytes": 2**40}
    file = parse_run_file(BASE | {"model": "m", "seed": 2**63 - 1, "rollout": rollout, "preflight": False})
    assert (file.seed, file.rollout.memory_limit_bytes, file.preflight) == (2**63 - 1, 2**40, False)


def test_a_key_of_no_kind_is_an_unknown_key_whatever_the_file_contains() -> None:
    for file in (None, [], {"algorithm": 3}, BASE | {"model": "m", "rounds": 2}):
        with pytest.raises(ConfigError, match="run file: "):
            parse_run_file(file)
