"""Processes that agents note for a test, from PID namespaces of their own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def pid_of(noted: str) -> int | None:
    """This namespace's number for `NUMBER:NAMESPACE`, as a process noted itself; None if there is no such process."""
    number, namespace = noted.split(":")
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.stat(folder / "ns" / "pid").st_ino == int(namespace) and _innermost(folder) == number:
                return int(folder.name)
    return None


def _innermost(folder: Path) -> str:
    lines = (folder / "status").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("NSpid:"))
