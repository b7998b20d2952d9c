"""What is found of realistic secrets, and what is taken for one by mistake: texts that do not come from the rules."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from relight.observability.redaction import Redactor
from relight.observability.secret_shapes import SHAPES, compiled, rules
from tests.support.secret_corpus import harmless, harmless_by_hand, planted, remains

REDACTOR = Redactor()
CORPORA = ("secret_corpus", "held_out_first", "held_out_second", "held_out_third")
SIZE = 30_000
"""Bytes of a hostile text: at this size a pattern that backtracks would not end."""


def test_the_corpus_is_wide_enough() -> None:
    cases = planted(1)
    assert len(cases) >= 150
    assert len({case.kind for case in cases}) >= 40
    assert len(harmless(1)) >= 5_000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_a_hundred_realistic_secrets_at_least_97_are_found(seed: int) -> None:
    cases = [case for name in CORPORA for case in planted(seed, name)]
    missed = [case for case in cases if remains(case, REDACTOR.value(case.held))]
    assert len(missed) <= 0.03 * len(cases), missed


def test_a_secret_is_found_in_json_as_it_is_in_a_value() -> None:
    for case in (case for name in CORPORA for case in planted(4, name)):
        stored = REDACTOR.json(orjson.dumps({"attribute": case.held}))
        assert orjson.loads(stored) == REDACTOR.value({"attribute": case.held})


def test_of_a_thousand_harmless_texts_at_most_one_is_changed() -> None:
    texts = [*harmless(1), *harmless_by_hand(random.Random(1), "held_out_harmless")]
    changed = [text for text in texts if REDACTOR.text(text) != text]
    assert len(changed) <= len(texts) / 1000, changed


def test_a_second_redaction_changes_nothing_more() -> None:
    for case in planted(5):
        once = REDACTOR.value(case.held)
        assert REDACTOR.value(once) == once


@pytest.mark.parametrize(
    "part",
    [
        "password=",
        'password="',
        "password=\\'",
        "a://b:c",
        "curl -u ",
        "-----BEGIN PRIVATE KEY ",
        "eyJhbGciOi.",
        "%41",
        "\\u0041",
        "linear ",
        "authorization: digest ",
        "cGFzc3dvcmQ9",
        "key: ",
        "sk-",
        "A3-AAAAAA-",
        "mysql ",
        "&quot;",
        "password is ",
    ],
)
def test_a_hostile_text_is_searched_in_linear_time_and_to_its_end(part: str) -> None:
    secret = "ghp_" + "a1B2c3" * 6
    text = part * (SIZE // len(part)) + f"\n {secret}\n"
    redacted = REDACTOR.text(text)
    assert secret not in redacted
    assert REDACTOR.text(redacted) == redacted


def test_the_rules_of_gitleaks_can_all_be_matched() -> None:
    assert len(rules()) >= 150
    for shape in (*rules(), *SHAPES):
        compiled(shape.pattern)


@pytest.mark.parametrize(
    "value",
    [
        {"tools": [{"parameters": {"properties": {"password": {"type": "string", "description": "yours"}}}}]},
        {"usage": {"app_tokens": 12, "service_tokens": 3}},
        {"name": "city", "value": "Berlin"},
        ["password", "email"],
        {"password": "Enter your password"},
    ],
)
def test_values_that_are_no_secrets_stay(value: Any) -> None:
    assert REDACTOR.value(value) == value
