"""What a run file's `isolation` means on a runner."""

from __future__ import annotations

import logging

import pytest
from temporalio.testing import ActivityEnvironment

from relight.runner.attempt_activity import RunnerActivities
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.shared_isolation import SharedRunner
from relight.store.memory.attempts import MemoryAttemptStore
from relight.types.payloads import AttemptInput, RolloutResult
from tests.unit.runner.support import FILE

AGENT = "well"


async def _run(store: MemoryAttemptStore, agents: SharedRunner, lacking: str = "") -> RolloutResult:
    gateway = GatewayProbe("http://127.0.0.1:9")
    activities = RunnerActivities(store, agents, gateway, AGENT, "runner-1", lacking=lacking)
    attempt = AttemptInput(rollout_id="r1", try_number=1, run="demo")
    try:
        return await ActivityEnvironment().run(activities.run_attempt, attempt)
    finally:
        await gateway.close()


async def test_a_run_that_asks_for_the_sandbox_is_refused_by_a_runner_without() -> None:
    store = MemoryAttemptStore()
    store.add_run("demo", isolation="sandbox")
    rollout = store.add_rollout("r1", input={})
    with pytest.raises(Exception, match="isolation: sandbox can't be had on runner runner-1: no namespaces here"):
        await _run(store, SharedRunner([f"{FILE}:{AGENT}"]), "no namespaces here")
    assert rollout.attempts[0].ended
    async with SharedRunner([f"{FILE}:{AGENT}"]) as agents:
        assert (await _run(store, agents)).reward == 1.0


async def test_a_run_in_a_shared_process_is_told_that_nothing_separates_its_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryAttemptStore()
    store.add_run("demo", isolation="shared")
    store.add_rollout("r1", input={})
    with caplog.at_level(logging.WARNING):
        async with SharedRunner([f"{FILE}:{AGENT}"]) as agents:
            assert (await _run(store, agents)).reward == 1.0
    assert "nothing separates them from each other" in caplog.text
