"""Attempt tokens."""

from __future__ import annotations

import re

from relight.store.attempts.attempt_tokens import attempt_token, attempt_url, new_attempt_id, new_key, token_hash


def test_a_token_is_reproducible_and_differs_by_key_and_attempt() -> None:
    key = new_key()
    token = attempt_token(key, "at-1")
    assert token == attempt_token(key, "at-1")
    assert len({token, attempt_token(key, "at-2"), attempt_token(new_key(), "at-1")}) == 3
    assert re.fullmatch(r"rl-[A-Za-z0-9_-]{43}", token)
    assert token_hash(token) != token


def test_attempt_ids_are_unique_and_sort_by_time() -> None:
    ids = [new_attempt_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [id_[:15] for id_ in ids] == sorted(id_[:15] for id_ in ids)


def test_each_attempt_gets_a_base_url_of_its_own() -> None:
    assert attempt_url("http://gw:1/", "r", "a") == "http://gw:1/rollout/r/attempt/a/v1"
