"""Finds full disks under the home folder. Runs wait until there is space again, and then go on by themselves.

Only this machine's disks are checked; on a cluster the platform has to monitor its disks.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel

LOW_BYTES = 16 * 2**20
"""One more file of Postgres' write-ahead log."""
FOLDERS = {"postgres": "Postgres' data", "temporal": "Temporal's database", "runs": "checkpoints and exports"}


class FullDisk(BaseModel):
    """A folder without free space."""

    folder: str
    holds: str
    free_bytes: int

    def __str__(self) -> str:
        free = self.free_bytes / 2**20
        return f"{self.folder} ({self.holds}) has {free:.1f} MiB left; runs wait until there is more free space"


def full_disks(home: Path) -> list[FullDisk]:
    """The folders of a home without free space; of those on the same disk only the first."""
    found: dict[int, FullDisk] = {}
    for name, holds in FOLDERS.items():
        folder = home / name
        if folder.exists() and (free := shutil.disk_usage(folder).free) < LOW_BYTES:
            full = FullDisk(folder=str(folder), holds=holds, free_bytes=free)
            found.setdefault(folder.stat().st_dev, full)
    return list(found.values())
