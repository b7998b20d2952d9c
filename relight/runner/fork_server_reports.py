"""What the fork server's process reports to the runner: that its agents are loaded, and how a forked process ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relight.confinement.domain import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The fork server is ready."""

    agents: Sequence[str]
    """Their names."""
    warnings: Sequence[str]
    threads: int
    held: Held
    """The protections in its process."""
    pid: int = 0
    """That of its process, which the runner adds."""


@dataclass(slots=True, kw_only=True)
class ExitReport:
    """How a process ended."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    peak_rss_bytes: int = 0
    lost: str | None = None
    """Why the platform lost it; None for a process that ended by itself or was killed on purpose."""
    excused: bool = False
    """It is known that this call did not cause the loss."""
