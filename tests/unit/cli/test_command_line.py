"""The commands as a shell sees them: one line on stderr, an exit code, and light imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_models import make_model


def relight(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relight.cli", *words, "--home", str(folder / "home")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"agent": "a", "model": "policy", "data": "t.jsonl", "lr": 1}, "run.json: lr: unknown key; `relight schema`"),
        ({"agent": "a", "model": "./none", "data": "t.jsonl"}, "model ./none: there is no directory"),
        ({"agent": "a", "model": "policy", "data": "none.jsonl"}, "data set none.jsonl: there is no file"),
    ],
)
def test_an_invalid_run_ends_with_one_line_and_exit_code_2(tmp_path: Path, file: object, message: str) -> None:
    make_model(tmp_path / "policy")
    (tmp_path / "t.jsonl").write_text('{"question": "1+1?"}\n')
    (tmp_path / "run.json").write_text(json.dumps(file))
    ended = relight(tmp_path, "train", "run.json")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: {message}")
    assert ended.stderr.count("\n") == 1


def test_an_invalid_run_is_named_in_json_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"agent": "a", "model": "policy", "data": "t.jsonl", "lr": 1}))
    ended = relight(tmp_path, "train", "run.json", "--json")
    assert ended.returncode == 2
    assert "run.json: lr: unknown key" in json.loads(ended.stdout)["error"]["message"]


@pytest.mark.parametrize("words", [("runs",), ("rollouts", "calc-1"), ("pause", "calc-1"), ("status", "calc-1")])
def test_without_a_stack_every_command_names_relight_up(tmp_path: Path, words: tuple[str, ...]) -> None:
    nowhere = ("--store-url", "http://127.0.0.1:1", "--temporal-address", "127.0.0.1:1")
    ended = relight(tmp_path, *words, *nowhere)
    assert ended.returncode == 1
    assert "start the embedded stack with `relight up`" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_nothing_that_starts_or_shows_runs_imports_what_trains_them() -> None:
    modules = "relight.datasets, relight.models, relight.store.runs.views, relight.cli.demo, relight.cli.status"
    code = f"import sys, {modules}; print(*({{'torch', 'vllm', 'verl', 'matplotlib', 'pyarrow'}} & sys.modules.keys()))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == []
