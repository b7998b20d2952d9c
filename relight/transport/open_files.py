"""Raises the limit of open files: a relay has two connections for each one of an agent, and the usual limit is 1024."""

from __future__ import annotations

import resource

MAX_LIMIT = 65_536
"""A higher limit only slows down code that closes all possible descriptors."""


def allow_open_files() -> None:
    """Raise this process's limit as far as it may by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
