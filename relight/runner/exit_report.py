"""How a forked process ended: the fork server's process sends it, the runner reads it and keeps it with the outcome."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ExitReport:
    """How a process ended."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    peak_rss_bytes: int = 0
    leftovers: int = 0
    """Processes that outlived it and were killed."""
    lost: str | None = None
    """Why the platform lost it; None for a process that ended by itself or was killed on purpose."""
    excused: bool = False
    """It is known that this call did not cause the loss."""
