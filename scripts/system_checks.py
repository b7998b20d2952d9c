"""Checks the machine before anything is installed. Standard library only; runs on any Python 3.9 or newer."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PYTHONS = ((3, 11), (3, 12))
MEMORY_GIB = 8
DISK_GIB = 12
"""The environment takes 6 GB, and the package cache as much if it is on another file system."""
GIB = 1024**3


def platform_problem(system: str, machine: str) -> str | None:
    """Relight's engines and trainer exist for one platform."""
    if system == "Linux" and machine in ("x86_64", "AMD64"):
        return None
    return f"this is {system} on {machine}; Relight needs Linux on x86-64 (a container or virtual machine will do)"


def memory_problem(size_bytes: int | None) -> str | None:
    """The engine, the trainer and the test agents together need about 6 GiB."""
    if size_bytes is None or size_bytes >= MEMORY_GIB * GIB * 0.9:  # a machine sold with 8 GB shows a little less
        return None
    return f"{size_bytes / GIB:.1f} GiB of memory; {MEMORY_GIB} are needed"


def disk_problem(folder: Path, needed_gib: float = DISK_GIB) -> str | None:
    """Free space for the environment."""
    free = shutil.disk_usage(folder).free
    if free >= needed_gib * GIB:
        return None
    return f"{free / GIB:.1f} GiB are free in {folder}; about {needed_gib:g} are needed, free some or use another disk"


def memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory of the machine, or of the container where that is less."""
    sizes: list[int] = []
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    except OSError:
        pass
    for limit in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        try:
            sizes.append(int(limit.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes, default=None)


def problems(folder: Path, *, first_time: bool) -> list[str]:
    """All problems of this machine."""
    found = [
        platform_problem(platform.system(), platform.machine()),
        memory_problem(memory_bytes()),
        disk_problem(folder) if first_time else None,
    ]
    return [problem for problem in found if problem]


def python_version(command: str) -> tuple[int, ...] | None:
    """Version of an interpreter that really runs (a pyenv shim may stand for one that is not there)."""
    try:
        code = "import sys; print(*sys.version_info[:3])"
        answer = subprocess.run([command, "-I", "-c", code], capture_output=True, text=True, timeout=20, check=False)
        return tuple(int(part) for part in answer.stdout.split()) or None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def find_python(own: str, environ: Mapping[str, str] = os.environ) -> tuple[str, tuple[int, ...]] | None:
    """An interpreter of a version that Relight runs on: our own, or one on PATH."""
    names = [own, *(f"python{major}.{minor}" for major, minor in reversed(PYTHONS)), "python3", "python"]
    for name in names:
        path = shutil.which(name, path=environ.get("PATH"))
        version = python_version(path) if path else None
        if path and version and version[:2] in PYTHONS:
            return path, version
    return None


def has_gpu() -> bool:
    """Whether nvidia-smi answers."""
    if not shutil.which("nvidia-smi"):
        return False
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
