"""The wheel works in an environment that has nothing else of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relight.store.database import migrations, queries

ROOT = Path(__file__).resolve().parents[2]
OWN_UV = ROOT / ".relight" / "tools" / "uv" / "bin" / "uv"


def run(*command: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTHON"))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel and what it needs."""
    uv = shutil.which("uv") or str(OWN_UV)
    folder = tmp_path_factory.mktemp("wheel")
    run(uv, "build", "--wheel", "--out-dir", str(folder), str(ROOT), cwd=folder)
    run(uv, "venv", "--python", sys.executable, str(folder / "env"), cwd=folder)
    python = str(folder / "env" / "bin" / "python")
    run(uv, "pip", "install", "--python", python, *map(str, folder.glob("*.whl")), cwd=folder)
    return folder / "env" / "bin"


def test_importing_relight_needs_no_torch(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u, relight; from relight import LLM, rollout; print(u.find_spec('torch'))"
    assert run(str(installed / "python"), "-c", code, cwd=tmp_path).strip() == "None"


@pytest.mark.parametrize("command", ["--help", "schema", "config", "up --help", "train --help"])
def test_the_command_line_works(installed: Path, tmp_path: Path, command: str) -> None:
    assert run(str(installed / "relight"), *command.split(), cwd=tmp_path)


def test_the_wheel_contains_its_sql_and_its_licence(installed: Path, tmp_path: Path) -> None:
    code = (
        "from relight.store.database import migrations, queries; from importlib.metadata import distribution;"
        "print([len(migrations()), len(queries())], [f.name for f in distribution('relight').files])"
    )
    said = run(str(installed / "python"), "-c", code, cwd=tmp_path)
    assert said.startswith(str([len(migrations()), len(queries())]))
    assert "LICENSE" in said
