"""Room on the disk of checkpoints and exports: an update that finds none waits for it instead of failing.

What the update left half-written is removed, so that a full disk holds whole directories only. Whether there is room
again is looked at before the next try, which would train the step once more for nothing.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from relight.errors import CheckpointError, EngineError, ModelError, NoRoomError, RelightError, TrainerError
from relight.gpu_worker.checkpoints import remove_temporary

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
SAYINGS = ("No space left on device", "os error 28", "Disk quota exceeded")
"""How libraries put it in the messages that reach us."""
SUSPECTS = (CheckpointError, EngineError, ModelError, TrainerError)
"""What a full disk looks like where its own words got lost on the way."""
TIGHT_BYTES = 1 << 20
TRY_ANYWAY_SECONDS = 60.0
"""How long the same room is taken to be too little."""


def is_full(error: BaseException, free_bytes: int) -> bool:
    """Whether an error comes from a disk without room, of which so much was free when it came."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    if any(saying in str(error) for saying in SAYINGS):
        return True
    return isinstance(error, SUSPECTS) and free_bytes < TIGHT_BYTES


class Room:
    """The disk of one run's folder."""

    def __init__(self, folder: Path, versions: Path | None = None) -> None:
        self.folder = folder
        self.versions = versions or folder / "versions"
        """Where exports and checkpoints are written; it may be on another disk."""
        self._too_little: int | None = None
        """Bytes that were free when there was no room."""
        self._noticed = 0.0

    @property
    def free_bytes(self) -> int:
        """What may be written there, on the fuller disk."""
        return min(shutil.disk_usage(path).free for path in (self.folder, self.versions) if path.exists())

    def check(self) -> None:
        """Look before something is tried again.

        Raises:
            NoRoomError: no more is free than when it was too little.
        """
        if self._too_little is None or time.monotonic() - self._noticed > TRY_ANYWAY_SECONDS:
            return
        if self.free_bytes <= self._too_little:
            raise self._error()

    @contextmanager
    def needed(self) -> Generator[None]:
        """Where files are written.

        Raises:
            NoRoomError: there was no room for them; what is half-written is gone.
        """
        try:
            yield
        except (OSError, RelightError) as error:
            if not is_full(error, self.free_bytes):
                raise
            self._clear()
            self._too_little, self._noticed = self.free_bytes, time.monotonic()
            raise self._error() from error
        self._too_little = None

    def _clear(self) -> None:
        for parent in (self.folder, *self.versions.glob("*")):
            remove_temporary(parent)

    def _error(self) -> NoRoomError:
        free = self.free_bytes / 2**20
        return NoRoomError(f"room on the disk of {self.folder}: {free:.1f} MiB are free, and that is too little")
