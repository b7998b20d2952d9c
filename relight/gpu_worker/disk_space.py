"""Free space on the disk of checkpoints and exports: on a full disk an update waits instead of failing.

What the update left half-written is removed, so that a full disk holds complete directories only. The free space is
checked before the next try, which would otherwise train the step again in vain.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from relight.errors import CheckpointError, DiskFullError, EngineError, ModelError, RelightError, TrainerError
from relight.gpu_worker.complete_directories import remove_temporary

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_MESSAGES = ("No space left on device", "os error 28", "Disk quota exceeded")
"""Parts of libraries' error messages about a full disk."""
AMBIGUOUS_ERRORS = (CheckpointError, EngineError, ModelError, TrainerError)
"""Errors that a full disk may cause without such a message."""
NEARLY_FULL_BYTES = 1 << 20


def is_full(error: BaseException, free_bytes: int) -> bool:
    """Whether an error was caused by a full disk, on which so many bytes were free at that time."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    if any(saying in str(error) for saying in FULL_MESSAGES):
        return True
    return isinstance(error, AMBIGUOUS_ERRORS) and free_bytes < NEARLY_FULL_BYTES


class DiskSpace:
    """The disk of one run's folder."""

    recheck_seconds = 60.0
    """After this time an update is tried again although no more space is free."""

    def __init__(self, folder: Path, versions: Path | None = None) -> None:
        self.folder = folder
        self.versions = versions or folder / "versions"
        """Where exports and checkpoints are written; it may be on another disk."""
        self._free_when_full: int | None = None
        """Bytes that were free when the disk was full; None while it is not."""
        self._full_since = 0.0

    @property
    def free_bytes(self) -> int:
        """Free bytes; if the two folders are on different disks, those of the fuller one."""
        return min(shutil.disk_usage(path).free for path in (self.folder, self.versions) if path.exists())

    def check(self) -> None:
        """Check before another try.

        Raises:
            DiskFullError: no more space is free than when the disk was full.
        """
        if self._free_when_full is None or time.monotonic() - self._full_since > self.recheck_seconds:
            return
        if self.free_bytes <= self._free_when_full:
            raise self._error()

    @contextmanager
    def required(self) -> Generator[None]:
        """For blocks that write files.

        Raises:
            DiskFullError: the disk is full; what was half-written has been removed.
        """
        try:
            yield
        except (OSError, RelightError) as error:
            if not is_full(error, self.free_bytes):
                raise
            self._clear()
            self._free_when_full, self._full_since = self.free_bytes, time.monotonic()
            raise self._error() from error
        self._free_when_full = None

    def _clear(self) -> None:
        for parent in (self.folder, *self.versions.glob("*")):
            remove_temporary(parent)

    def _error(self) -> DiskFullError:
        free = self.free_bytes / 2**20
        return DiskFullError(f"the disk of {self.folder} is full: {free:.1f} MiB are free; delete files or enlarge it")
