"""Fixtures of the runner's tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from relight.runner.process_isolation import IsolatedRunner
from tests.unit.runner.support import NASTY, Seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner() -> AsyncGenerator[IsolatedRunner]:
    """Serves all the nasty agents, each attempt in a process of its own."""
    async with IsolatedRunner(NASTY) as started:
        yield started


@pytest.fixture
def pids(tmp_path: Path) -> Callable[[], list[int]]:
    """What agents noted in `task["pids"]`."""
    noted = tmp_path / "pids"
    noted.touch()
    return lambda: [int(line) for line in noted.read_text().split()]


@pytest.fixture
def seen() -> Seen:
    """Takes spans, and says when the agent is ready."""
    return Seen()
