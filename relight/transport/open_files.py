"""How many connections a process may hold: a relay has two for each one of an agent, and the usual limit is 1024."""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""More only slows down what closes all files that a process might have."""


def allow_open_files() -> None:
    """Raise this process's limit as far as it may by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
