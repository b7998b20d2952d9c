"""Clocks that jump: a small library before the C library of Relight's processes and of Postgres (clock.c).

Only the wall clock jumps, as on a machine whose time is set: the monotonic one goes on. libfaketime is not used since
`time.sleep` fails under it where it leaves the monotonic clock alone. Temporal's server is a Go program, which asks the
kernel without the C library, so its clock stays.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
HOUR = 3600.0


def may_jump() -> bool:
    """Whether the library can be built here."""
    return shutil.which("cc") is not None


def build(folder: Path) -> Path:
    """The library, where every process may read it."""
    made = folder / "clock.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl", "-pthread"], check=True)
    made.chmod(0o755)
    return made


class Clock:
    """The wall clock of one process and its children."""

    def __init__(self, file: Path, library: Path) -> None:
        self.file = file
        self.library = library
        file.write_bytes(struct.pack("q", 0))
        file.chmod(0o644)

    def jump(self, seconds: float) -> None:
        """Be so far from the true time, from now on."""
        with self.file.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", int(seconds * 1e9)))

    def environment(self) -> Mapping[str, str]:
        """What ties a process to this clock."""
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(self.file)}
