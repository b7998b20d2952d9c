"""Fixtures of tests that boot a whole stack."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder that another user may enter, as Postgres must where the tests run as root: pytest closes its own."""
    with tempfile.TemporaryDirectory(prefix="relight-e2e-") as path:
        Path(path).chmod(0o755)
        yield Path(path)
