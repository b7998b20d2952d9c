"""Limits of an attempt as a whole: memory, processes and scratch bytes of its process and all that this started.

They are watched, and an attempt that exceeds one is killed. That bounds nothing: within the time between two looks an
attempt can take more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relight.confinement import scratch
from relight.processes import linux
from relight.types.rollout import FailureClass

LOOK_SECONDS: Final = 0.4
RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Memory of a process beyond its limit, for reporting that it was reached."""
SHARED_MEMORY: Final = ("/memfd:", "/dev/shm/")
DELETED: Final = " (deleted)"


@dataclass(frozen=True)
class AttemptLimits:
    """What all processes of an attempt may hold together."""

    memory_bytes: int
    processes: int
    """Threads count too."""
    scratch_bytes: int


@dataclass(frozen=True)
class Excess:
    """How an attempt is to be ended, and the limit that it exceeded."""

    failure: FailureClass
    detail: str


@dataclass(frozen=True)
class OpenFiles:
    """Bytes of files that a tree of processes has open and that no folder or mapping shows."""

    memory_bytes: int
    scratch_bytes: int


def excess(pid: int, folder: str, limits: AttemptLimits) -> Excess | None:
    """The first limit that the attempt with this process and this scratch folder exceeds.

    Takes a millisecond for a small tree, and longer for one with many processes or files.
    """
    pids, threads = linux.tree(pid, limits.processes)
    if threads > limits.processes:
        return Excess(FailureClass.AGENT_ERROR, f"it ran more than {limits.processes} processes and threads")
    files = _open_files(pids, folder)
    if _memory(pids, files, limits.memory_bytes) > limits.memory_bytes:
        held = f"its processes held more than {limits.memory_bytes:,} bytes of memory"
        return Excess(FailureClass.OUT_OF_MEMORY, held)
    if files.scratch_bytes + scratch.size(folder, limits.scratch_bytes) > limits.scratch_bytes:
        wrote = f"it wrote more than {limits.scratch_bytes:,} bytes to its scratch folder"
        return Excess(FailureClass.AGENT_ERROR, wrote)
    return None


def _memory(pids: Iterable[int], files: OpenFiles, limit_bytes: int) -> int:
    """Bytes of memory. Pages that processes share count once, where the kernel says so, which takes longer."""
    private, shared = _sum(pids, "status", ("RssAnon", "VmSwap"), ("RssShmem",))
    if private + max(shared, files.memory_bytes) > limit_bytes:
        exact, exact_shared = _sum(pids, "smaps_rollup", ("Pss_Anon", "SwapPss"), ("Pss_Shmem",))
        if exact:
            private, shared = exact, exact_shared
    return private + max(shared, files.memory_bytes)


def _sum(pids: Iterable[int], file: str, *groups: Iterable[str]) -> list[int]:
    totals = [0 for _ in groups]
    for pid in pids:
        with suppress(OSError):  # it has ended, or its memory is closed to this user
            lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
            found = {name: value for name, _, value in (line.partition(":") for line in lines)}
            for index, names in enumerate(groups):
                totals[index] += sum(int(found[name].split()[0]) * 1024 for name in names if name in found)
    return totals


def _open_files(pids: Iterable[int], folder: str) -> OpenFiles:
    memory: dict[tuple[int, int], int] = {}
    deleted: dict[tuple[int, int], int] = {}
    for path in (f"/proc/{pid}/fd" for pid in pids):
        with suppress(OSError):  # as above
            for name in os.listdir(path):
                link = os.readlink(f"{path}/{name}")
                if link.startswith(SHARED_MEMORY):
                    _add(memory, f"{path}/{name}")
                elif link.endswith(DELETED) and link.startswith(folder):
                    _add(deleted, f"{path}/{name}")
    return OpenFiles(sum(memory.values()), sum(deleted.values()))


def _add(sizes: dict[tuple[int, int], int], path: str) -> None:
    found = os.stat(path)
    sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
