"""Fixtures of pytest: `pytest_plugins = ["relight.testing.plugin"]` in the top `conftest.py` makes them known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

import pytest

from relight.testing.agent_runs import AgentAttempts, FinishedAttempt
from relight.testing.upstream import ScriptedUpstream

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, for servers and processes that outlive a test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relight-testing", daemon=True)
        self._thread.start()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def relight_loop() -> Generator[LoopThread]:
    """The loop on which upstreams listen and attempts are watched."""
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def agent_attempts(relight_loop: LoopThread) -> Generator[AgentAttempts]:
    """The processes of agents, kept for the session: an agent's module is imported once."""
    attempts = AgentAttempts()
    yield attempts
    relight_loop.wait_for(attempts.close())


@pytest.fixture
def upstream(relight_loop: LoopThread) -> Generator[ScriptedUpstream]:
    """A model server whose answers the test adds."""
    scripted = relight_loop.wait_for(ScriptedUpstream().start())
    yield scripted
    relight_loop.wait_for(scripted.stop())


@pytest.fixture
def run_agent(
    relight_loop: LoopThread, agent_attempts: AgentAttempts, upstream: ScriptedUpstream
) -> Callable[..., FinishedAttempt]:
    """Run an attempt against `upstream`; the parameters are those of `AgentAttempts.run`."""
    run = partial(agent_attempts.run, upstream=upstream)
    return lambda *args, **options: relight_loop.wait_for(run(*args, **options))
