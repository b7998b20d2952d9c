"""What engines and trainers get of the environment."""

from __future__ import annotations

import os

import pytest

from relight.gpu_worker.child_environment import clean_environment


def test_secrets_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELIGHT_TOKEN", "TEMPORAL_API_KEY", "PGPASSWORD", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = clean_environment({"MORE": "yes"})
    assert "secret" not in environment.values()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["MORE"] == "yes"
    assert environment["PATH"] == os.environ["PATH"]
