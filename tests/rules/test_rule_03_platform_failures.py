"""Rule 3: a platform failure is never the agent's. Real agents in processes of their own, a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from relight.errors import ConflictError, StoreError
from relight.runner import attempt as attempts
from relight.runner.attempt import AttemptWatch
from relight.runner.calls import AgentCall
from relight.runner.gateway_probe import CallStatus, GatewayProbe
from relight.runner.isolated import IsolatedRunner
from relight.store.database import Database
from relight.store.postgres import PostgresStore
from relight.types.rollout import FailureClass
from relight.types.wire import OpenedAttempt, SpanRecord
from tests.rules.kit import HandRun, begin
from tests.unit.runner import nasty_agents

SERVED = [f"{nasty_agents.__file__}:{name}" for name in ("well", "raises", "exits", "busy")]
NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""


class Present(GatewayProbe):
    async def reachable(self) -> bool:
        return True

    async def status(self, opened: OpenedAttempt) -> CallStatus | None:
        return CallStatus(0.0, None)


@pytest_asyncio.fixture
async def agents() -> AsyncGenerator[IsolatedRunner]:
    async with IsolatedRunner(SERVED) as runner:
        yield runner


async def opened_of(run: HandRun) -> OpenedAttempt:
    await run.plan(1)
    return await run.opened((await run.rollouts(1))[0]["rollout_id"])


@pytest.mark.parametrize("grader", [None, "judge"])
async def test_an_attempt_that_ends_while_the_gateway_is_out_of_reach_is_infrastructure_whatever_the_agent_did(
    database: Database, tmp_path: Path, agents: IsolatedRunner, grader: str | None
) -> None:
    run = await begin(database, tmp_path, "cut", grader=grader)
    opened = await opened_of(run)
    gateway = GatewayProbe(NOWHERE)
    for agent in ("well", "raises", "exits"):
        outcome = await AttemptWatch(run.store, agents, gateway, opened, "w").run(AgentCall.from_opened(opened, agent))
        assert outcome is not None
        assert (outcome.failure_class, outcome.reward) == (FailureClass.INFRASTRUCTURE, None), agent
        opened = await run.opened(opened.rollout_id)  # and the same try is made again
    await gateway.close()
    row = (await run.rollouts(1))[0]
    assert (row["status"], row["attempts"], row["reward"]) == ("preparing", 4, None)


class Flickering(PostgresStore):
    """Away at the first heartbeat and the first spans, for longer than a client is patient."""

    beats = 0
    spans = 0

    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        self.beats += 1
        if self.beats == 1:
            raise StoreError
        await super().heartbeat(attempt_id, fence, worker_id)

    async def add_spans(self, rollout_id: str, attempt_id: str, fence: int | None, spans: list[SpanRecord]) -> int:
        self.spans += 1
        if self.spans == 1:
            raise StoreError
        return await super().add_spans(rollout_id, attempt_id, fence, spans)


async def test_a_runner_that_outlives_an_outage_of_the_store_still_learns_that_it_was_fenced_off(
    database: Database, tmp_path: Path, agents: IsolatedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "STORE_HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(attempts, "SPAN_FLUSH_SECONDS", 0.1)
    run = await begin(database, tmp_path, "flicker")
    opened = await opened_of(run)
    store = await Flickering.create(database, "http://gateway")
    watch = AttemptWatch(store, agents, Present(NOWHERE), opened, "w")
    watch.spans.add(SpanRecord(trace_id="t", span_id="s", name="n", start_time=1.0, end_time=2.0))
    running = asyncio.create_task(watch.run(AgentCall.from_opened(opened, "busy")))
    async with asyncio.timeout(20):
        while store.beats < 1 or store.spans < 2:  # noqa: ASYNC110 - asks what other tasks did
            await asyncio.sleep(0.05)
    newer = await run.opened(opened.rollout_id)
    with pytest.raises(ConflictError):
        await asyncio.wait_for(running, 20)
    await run.end(newer, 1.0)
    row = (await run.rollouts(1))[0]
    assert (row["status"], row["reward"]) == ("succeeded", 1.0)
    assert await database.pool.fetchval("select count(*) from spans where span_id = 's'") == 1
