"""What counts as a secret, and what does not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.errors import ConfigError
from relight.observability.redaction import MASK, Redactor
from relight.store.attempts.attempt_tokens import attempt_token
from tests.support.secrets import planted

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("key sk-abcdefghijklmnop1234 end", f"key {MASK} end"),
        ("Authorization: Bearer abc12345", f"Authorization: Bearer {MASK}"),
        ("sent Bearer abcdefgh1234.xyz", f"sent Bearer {MASK}"),
        ('{"password": "hunter2", "x": 1}', f'{{"password": "{MASK}", "x": 1}}'),
        ('{\\"api_key\\": \\"abc def\\"}', f'{{\\"api_key\\": \\"{MASK}\\"}}'),
        ("postgresql://me:pw@host/db", f"postgresql://me:{MASK}@host/db"),
        ("http://relight:TOKEN@host:4747", f"http://relight:{MASK}@host:4747"),
        ("?user=a&password=hunter2&x=1", f"?user=a&password={MASK}&x=1"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", f"a\n{MASK}\nb"),
        (f"it is {attempt_token(b'k', 'at-1')}.", f"it is {MASK}."),
    ],
)
def test_secrets_in_text_are_replaced(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "task-abcdefghijklmnopqrstuvwxyz and risk-free-words-in-a-long-row",
        "a basic understanding of bearer bonds; basic internationalisation",
        "the password was wrong, the secret is out, authorization denied",
        "http://host:4747/v1/traces and mail me@host",
        "ro-0123456789ab at-0189abcdef0123456789",
        "x" * 10_000,
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_values_are_replaced_where_their_name_says_that_they_are_secret() -> None:
    given_values: dict[str, Any] = {
        "http.request.header.authorization": ["Basic x"],
        "dbPassword": 1234,
        "client_secret": {"a": ["z", None, True, ""]},
    }
    assert Redactor().value(given_values) == {
        "http.request.header.authorization": [MASK],
        "dbPassword": MASK,
        "client_secret": {"a": [MASK, None, True, ""]},
    }


def test_tokens_of_a_model_and_their_log_probabilities_are_never_touched() -> None:
    kept: dict[str, Any] = {
        "prompt_token_ids": [1, 2, 3],
        "gen_ai.usage.input_tokens": 5,
        "max_tokens": 100,
        "logprobs": {"content": [{"token": "Hello", "logprob": -0.5, "bytes": [72]}]},
        "secretary": "Ada",
    }
    assert Redactor().value(kept) == kept
    assert Redactor().json(orjson.dumps(kept)) == orjson.dumps(kept)


def test_exact_secrets_and_patterns_of_the_user_are_replaced() -> None:
    redactor = Redactor([r"ticket-\d{3}", r"^\w+!$"], ['the "admin"\ntoken'])
    assert redactor.value(["see ticket-123", "whole!", 'a the "admin"\ntoken b']) == [
        f"see {MASK}",
        MASK,
        f"a {MASK} b",
    ]


def test_exact_secrets_that_are_short_are_no_secrets() -> None:
    assert Redactor(secrets=["admin", ""]).text("the admin") == "the admin"


@pytest.mark.parametrize("pattern", ["(", "(?=x)", "a*"])
def test_an_invalid_pattern_is_reported(pattern: str) -> None:
    with pytest.raises(ConfigError, match="redact_patterns"):
        Redactor([pattern])


@given(JSON_VALUES)
def test_text_that_the_scan_calls_clean_has_nothing_to_replace(value: Any) -> None:
    redactor = Redactor()
    data = orjson.dumps(value)
    if redactor.is_clean(data):
        assert redactor.value(value) == value
    assert redactor.json(redactor.json(data)) == redactor.json(data)


@given(planted())
def test_a_secret_is_found_wherever_it_is_planted(case: tuple[str, Any]) -> None:
    secret, held = case
    redactor = Redactor()
    assert not redactor.is_clean(orjson.dumps(held))
    assert secret not in repr(orjson.loads(redactor.json(orjson.dumps(held))))
    assert secret not in repr(redactor.value(held))
