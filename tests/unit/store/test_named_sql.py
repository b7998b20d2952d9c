"""The named queries under `relight/store/sql`."""

from __future__ import annotations

import re
from pathlib import Path

import relight
from relight.store.database import queries

BY_PREFIX = ("check_", "metrics_")
"""Looked up all together, by what their names begin with."""


def test_every_named_query_is_used() -> None:
    code = "\n".join(file.read_text() for file in Path(relight.__file__).parent.rglob("*.py"))
    quoted = set(re.findall(r"\"(\w+)\"", code))
    assert [name for name in queries() if name not in quoted and not name.startswith(BY_PREFIX)] == []
