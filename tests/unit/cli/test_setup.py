"""`make setup`: what it asks of a machine, and what it does with one that lacks something."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
GIB = 1024**3


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


system_checks = load("system_checks")


@pytest.mark.parametrize(
    ("system", "machine", "fits"),
    [("Linux", "x86_64", True), ("Linux", "aarch64", False), ("Darwin", "arm64", False), ("Windows", "AMD64", False)],
)
def test_only_linux_on_x86_64_fits(system: str, machine: str, fits: bool) -> None:
    problem = system_checks.platform_problem(system, machine)
    assert (problem is None) is fits
    assert fits or "needs Linux on x86-64" in problem


@pytest.mark.parametrize(("size", "fits"), [(4 * GIB, False), (7.5 * GIB, True), (64 * GIB, True), (None, True)])
def test_eight_gib_of_memory_are_needed(size: float | None, fits: bool) -> None:
    assert (system_checks.memory_problem(size) is None) is fits


def test_a_containers_limit_counts_where_it_is_lower(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    assert system_checks.memory_bytes(proc, cgroup) == 32 * GIB
    (cgroup / "memory.max").write_text("max\n")
    assert system_checks.memory_bytes(proc, cgroup) == 32 * GIB
    (cgroup / "memory.max").write_text(f"{6 * GIB}\n")
    assert system_checks.memory_bytes(proc, cgroup) == 6 * GIB


def test_a_full_disk_is_reported_with_the_space_needed(tmp_path: Path) -> None:
    assert system_checks.disk_problem(tmp_path, needed_gib=0.0001) is None
    assert "about 1e+06 are needed" in system_checks.disk_problem(tmp_path, needed_gib=1e6)


def test_a_shim_of_a_missing_python_is_skipped(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    real = tmp_path / "python3.11"
    real.write_text("#!/bin/sh\necho 3 11 7\n")
    real.chmod(0o755)
    found = system_checks.find_python("/nowhere/python3", {"PATH": str(tmp_path)})
    assert found == (str(real), (3, 11, 7))


def test_a_python_of_another_version_is_not_taken(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3 13 1\n")
    other.chmod(0o755)
    assert system_checks.find_python("/nowhere/python3", {"PATH": str(tmp_path)}) is None


def test_the_setup_script_needs_only_the_standard_library() -> None:
    own = {"system_checks"}
    for script in ("system_checks.py", "setup.py"):
        lines = (ROOT / "scripts" / script).read_text().splitlines()
        names = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert names <= sys.stdlib_module_names | own


def test_without_any_way_to_a_temporal_server_the_ways_are_listed(tmp_path: Path) -> None:
    """On a machine without cache, network and Go, where the environment is made."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import setup
setup.environment_is_made = lambda: True
setup.temporal_binary.can_download = lambda: False
setup.LOGS = setup.WORK = setup.Path({str(tmp_path / "work")!r})
sys.argv = ["setup.py"]
sys.exit(setup.main())
"""
    environ = {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": os.environ["HOME"]}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 1
    for way in ("TEMPORAL_ADDRESS", "on PATH", "temporal.download", "install Go"):
        assert way in done.stderr


def test_clean_removes_what_this_checkout_made_and_leaves_what_others_use(tmp_path: Path) -> None:
    """The Temporal server in the user's cache serves all checkouts, and runs that are live."""
    checkout, server = tmp_path / "checkout", tmp_path / "cache" / "relight" / "temporal-1.8.2"
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import setup
setup.ROOT = setup.Path({str(checkout)!r})
setup.WORK, setup.VENV = setup.ROOT / ".relight", setup.ROOT / ".venv"
sys.argv = ["setup.py", "clean"]
sys.exit(setup.main())
"""
    own = [checkout / name for name in (".venv/lib", ".relight/postgres", "relight/store/__pycache__", ".ruff_cache")]
    elsewhere = tmp_path / "large-disk"
    for folder in (*own, server.parent, elsewhere / "kept"):
        folder.mkdir(parents=True)
    (checkout / "dist").symlink_to(elsewhere)
    server.write_text("a server")
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(folder.exists() for folder in (*own, checkout / "dist"))
    assert (elsewhere / "kept").exists(), "a link is removed, and not what it leads to"
    assert server.read_text() == "a server"
    assert str(server.parent) in done.stdout, "where it lies, for those who want to remove it"
