"""Rule 6: a runner polls one queue for each agent that it serves, and that queue says whether a runner serves it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from temporalio.client import Client

from relight.activities.readiness import count_pollers, why_waiting
from relight.runner.worker import serve
from relight.settings import Settings
from relight.types.payloads import CheckInput
from tests.support.orchestration import eventually
from tests.unit.runner import misbehaving_agents


async def test_a_runner_polls_a_queue_for_each_agent_and_no_other(temporal: Client, temporal_address: str) -> None:
    settings = Settings(temporal_address=temporal_address, store_url="http://127.0.0.1:9", runner_queue="mine")
    running = asyncio.create_task(
        serve(settings, [f"{misbehaving_agents.__file__}:{name}" for name in ("well", "raises")])
    )
    try:
        for agent in ("well", "raises"):
            await eventually(lambda queue=f"mine.{agent}": count_pollers(temporal, queue), 60)
        assert await count_pollers(temporal, "mine.busy") == 0
        assert await count_pollers(temporal, "mine") == 0
        asked = CheckInput(run="r", agent="well", runner_queue="mine")
        assert await why_waiting(temporal, asked) is None
        reason = await why_waiting(temporal, asked.model_copy(update={"agent": "busy"}))
        assert reason is not None
        assert "no runner serves agent 'busy' (task queue mine.busy)" in reason
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
