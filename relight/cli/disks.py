"""Disks of this home folder that are full: what is written there waits, and starts again by itself once there is room.

Only the machine that asks is looked at; on a cluster the platform watches its own disks.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel

LOW_BYTES = 16 * 2**20
"""One more file of Postgres' write-ahead log."""
FOLDERS = {"postgres": "Postgres' data", "temporal": "Temporal's database", "runs": "checkpoints and exports"}


class FullDisk(BaseModel):
    """A folder without room."""

    folder: str
    holds: str
    free_bytes: int

    def __str__(self) -> str:
        free = self.free_bytes / 2**20
        return f"{self.folder} ({self.holds}) has {free:.1f} MiB left: runs wait until there is room"


def full_disks(home: Path) -> list[FullDisk]:
    """The folders of a home that have no room; of those on one disk the first."""
    found: dict[int, FullDisk] = {}
    for name, holds in FOLDERS.items():
        folder = home / name
        if folder.exists() and (free := shutil.disk_usage(folder).free) < LOW_BYTES:
            full = FullDisk(folder=str(folder), holds=holds, free_bytes=free)
            found.setdefault(folder.stat().st_dev, full)
    return list(found.values())
