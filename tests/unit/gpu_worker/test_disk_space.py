"""A full disk is told from everything else that goes wrong, and waited for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from relight.errors import CheckpointError, DiskFullError, TrainerError
from relight.gpu_worker.disk_space import NEARLY_FULL_BYTES, DiskSpace, is_full

PLENTY = 10 * NEARLY_FULL_BYTES


@pytest.mark.parametrize(
    ("error", "free_bytes", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), PLENTY, True),
        (OSError(errno.ENOENT, "no such file"), 0, False),
        (TrainerError("SafetensorError: I/O error: No space left on device (os error 28)"), PLENTY, True),
        (TrainerError("PytorchStreamWriter failed writing file"), 0, True),
        (TrainerError("PytorchStreamWriter failed writing file"), PLENTY, False),
        (CheckpointError("torn"), PLENTY, False),
    ],
)
def test_a_full_disk_is_recognized_by_the_error_or_by_the_free_space(
    error: Exception, free_bytes: int, full: bool
) -> None:
    assert is_full(error, free_bytes) is full


class SmallDisk(DiskSpace):
    """With as much free space as the test says."""

    free = 0

    @property
    def free_bytes(self) -> int:
        return self.free


def run_out(disk: DiskSpace) -> None:
    with pytest.raises(DiskFullError, match=r"the disk of .* is full"), disk.required():
        raise TrainerError("No space left on device")


def test_a_write_is_not_repeated_before_there_is_more_space(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    disk.check()
    run_out(disk)
    with pytest.raises(DiskFullError):
        disk.check()
    disk.recheck_seconds = 0.0
    disk.check()
    disk.recheck_seconds = DiskSpace.recheck_seconds
    disk.free = 1
    disk.check()
    with disk.required():
        pass
    disk.free = 0
    disk.check()


def test_incomplete_files_are_removed_and_complete_ones_stay(tmp_path: Path) -> None:
    version = tmp_path / "versions" / "v00001-f1"
    for name in ("export", ".checkpoint.tmp-7"):
        (version / name).mkdir(parents=True)
    run_out(SmallDisk(tmp_path))
    assert [path.name for path in version.iterdir()] == ["export"]


def test_other_errors_pass(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    disk.free = PLENTY
    with pytest.raises(TrainerError, match="diverged"), disk.required():
        raise TrainerError("the loss diverged")
    disk.check()
