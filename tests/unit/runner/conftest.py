"""Fixtures of the runner's tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from relight.confinement.policy import ConfinementPolicy
from relight.runner.process_isolation import IsolatedRunner
from tests.unit.runner.support import MAX_SPANS, MISBEHAVING, Seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[IsolatedRunner]:
    """Serves all the misbehaving agents, each attempt in a process of its own, confined but for the tests' folder."""
    folder = tmp_path_factory.getbasetemp()
    allowed = ConfinementPolicy(user_home=str(Path.home()), writable=[str(folder)], ports=[])
    async with IsolatedRunner(MISBEHAVING, policy=allowed, max_spans=MAX_SPANS) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unconfined() -> AsyncGenerator[IsolatedRunner]:
    """The same where nothing keeps an attempt from killing its fork server."""
    async with IsolatedRunner(MISBEHAVING, kill_grace_seconds=0.5) as started:
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
