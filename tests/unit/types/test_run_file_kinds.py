"""What kind of run file it is, is decided by `algorithm.name`; keys of other kinds are refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from relight.errors import ConfigError
from relight.types.run_file import AnyRunFile, RunFile, Section, parse_kind, parse_run_file


class PromptAlgorithm(Section):
    name: Literal["prompts"]
    beam: int = 4


class PromptFile(AnyRunFile):
    """A kind of run without a model and without groups."""

    algorithm: PromptAlgorithm
    rounds: int = 3


KINDS: list[type[AnyRunFile]] = [RunFile, PromptFile]
BASE = {"agent": "calculator", "data": "train.jsonl"}
PROMPTS = BASE | {"algorithm": {"name": "prompts"}}


def test_the_algorithm_s_name_decides_the_kind_and_the_first_kind_is_the_default() -> None:
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


def test_what_no_kind_has_is_an_unknown_key_whatever_the_file_looks_like() -> None:
    for file in (None, [], {"algorithm": 3}, BASE | {"model": "m", "rounds": 2}):
        with pytest.raises(ConfigError, match="run file: "):
            parse_run_file(file)
