"""Gates that stop a process of the stack at a place until a test opens them: files in a folder that all know."""

from __future__ import annotations

import time
from pathlib import Path

VARIABLE = "DRAIN_GATES"
PAUSE_SECONDS = 0.05
LONGEST_SECONDS = 120.0


def shut(gates: Path, name: str) -> None:
    """Have every caller of this gate wait."""
    for left in gates.glob(f"{name}.at-*"):
        left.unlink()
    (gates / name).touch()


def open_(gates: Path, name: str) -> None:
    """Let them go on."""
    (gates / name).unlink()


def waiting(gates: Path, name: str) -> int:
    """How many have come to a gate since it was shut."""
    return len(list(gates.glob(f"{name}.at-*")))


def pass_(gates: Path, name: str, who: str) -> None:
    """Wait here while the gate is shut; a test that forgot it must not leave a process behind for ever."""
    gate = gates / name
    if gate.exists():
        (gates / f"{name}.at-{who}").touch()
    until = time.monotonic() + LONGEST_SECONDS
    while gate.exists() and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
