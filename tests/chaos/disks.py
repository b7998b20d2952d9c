"""Disks of the stack that can be made full: a small file system of its own under each folder that grows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES = 1 << 30
DISKS = ("postgres", "temporal", "runs")
"""Postgres' data, Temporal's database, and checkpoints with exports: folders of the stack's home."""
TRIES = 50
SPARE_BYTES = 4096
SOURCE = "relight-chaos-"


@dataclass(frozen=True)
class Disk:
    """A mounted file system whose size follows what is wanted of it."""

    name: str
    folder: Path

    def fill(self) -> None:
        """Leave no space: it becomes as small as what it holds."""
        for _ in range(TRIES):  # what is written between the look and the change makes the change fail
            with suppress(subprocess.CalledProcessError):
                self._resize(self.used_bytes + SPARE_BYTES)
                return
        raise AssertionError(f"the disk of {self.name} can't be made full")

    def free(self) -> None:
        """Give the space back."""
        self._resize(SIZE_BYTES)

    @property
    def used_bytes(self) -> int:
        """What it holds."""
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def _resize(self, size_bytes: int) -> None:
        command = ["mount", "-o", f"remount,size={size_bytes}", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)


def may_mount() -> bool:
    """Whether this user may mount a file system here."""
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True)
    return probe.returncode == 0


def unmount_leftovers() -> None:
    """Those of harnesses that were killed: each mount bears its harness's process id."""
    for line in Path("/proc/mounts").read_text().splitlines():
        source, folder, *_ = line.split()
        pid = source.removeprefix(SOURCE)
        if source.startswith(SOURCE) and not Path("/proc", pid).exists():
            subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


@contextmanager
def mounted(home: Path) -> Generator[dict[str, Disk]]:
    """The stack's disks, before it boots; nothing where they can't be had."""
    disks = [Disk(name, home / name) for name in DISKS] if may_mount() else []
    try:
        if disks:
            unmount_leftovers()
        for disk in disks:
            disk.folder.mkdir(parents=True)
            options = f"size={SIZE_BYTES},mode=0755"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, f"{SOURCE}{os.getpid()}", str(disk.folder)], check=True
            )
        yield {disk.name: disk for disk in disks}
    finally:
        for disk in disks:
            subprocess.run(["umount", "-l", str(disk.folder)], check=False, capture_output=True)
