"""The calculator's shipped policy: its size, and that its tokenizer, loaded as vLLM and verl load it, loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = Path(__file__).parents[3] / "examples" / "calculator"
POLICY = EXAMPLE / "policy"
CALLS = ["mul(7,8)", "add(56,3)", "sub(-5,9)"]


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


def questions() -> Iterator[str]:
    for name in ("train", "heldout"):
        for line in (EXAMPLE / f"{name}.jsonl").read_text().splitlines():
            yield json.loads(line)["question"]


def render(*messages: tuple[str, str]) -> list[int]:
    conversation = [{"role": role, "content": content} for role, content in messages]
    return tokenizer().apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)


def test_the_policy_is_smaller_than_two_megabytes() -> None:
    assert 1_000_000 < sum(path.stat().st_size for path in POLICY.iterdir()) < 2_000_000


def test_every_question_and_its_chat_prompt_are_unchanged_by_the_tokenizer() -> None:
    for question in questions():
        assert tokenizer().decode(tokenizer().encode(question)) == question
        assert tokenizer().decode(render(("user", question))) == f"<|user|>{question}<|end|><|assistant|>"


@given(st.text(st.characters(codec="ascii")))
def test_any_ascii_text_is_unchanged_by_the_tokenizer(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text)) == text


@pytest.mark.parametrize("call", CALLS)
def test_the_second_prompt_continues_the_tokens_of_the_first_turn(call: str) -> None:
    first = render(("user", "(7*8)+3?"))
    written = [*tokenizer().encode(call), tokenizer().eos_token_id]
    second = render(("user", "(7*8)+3?"), ("assistant", call), ("user", "56"))
    assert second[: len(first) + len(written)] == first + written
    assert tokenizer().decode(second[len(first) + len(written) :]) == "<|user|>56<|end|><|assistant|>"


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_fits_the_agents_limit(call: str) -> None:
    assert len(tokenizer().encode(call)) + 1 <= 16


def test_the_end_mark_is_one_token_and_ends_generation() -> None:
    config = json.loads((POLICY / "generation_config.json").read_text())
    assert tokenizer().encode("<|end|>") == [tokenizer().eos_token_id] == [config["eos_token_id"]]
