"""Spans of attempts: real agents in their processes, the gateway, the store service and Postgres."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from relight.confinement.policy import policy
from relight.runner.agent_call import AgentCall
from relight.runner.attempt import AttemptWatch, SpanBuffer
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.process_isolation import AgentRunner, IsolatedRunner
from relight.runner.shared_isolation import SharedRunner
from relight.store.attempts.plain_http_client import StoreLink
from relight.store.attempts.postgres import PostgresStore
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.types.tracer import Span
from relight.types.wire import AttemptOutcome, OpenRequest
from tests.integration.tracer import traced_agents
from tests.support.fake_engine import fake_engine
from tests.support.gateway import listening_gateway
from tests.support.seeds import seed_engine, seed_rollout, seed_run
from tests.support.store_service import TOKEN, store_service

Runner = Callable[..., Any]


class Stage:
    """A run whose model calls are served, and the parts that an attempt at it needs."""

    def __init__(self, database: Database, store: StoreLink, client: LightningStoreClient, gateway: str) -> None:
        self.database = database
        self.store = store
        self.client = client
        self.gateway = gateway

    async def play(
        self, runner: Runner, agent: str, home: Path, *, flush_seconds: float = SpanBuffer.flush_seconds, **changes: Any
    ) -> AttemptOutcome:
        """One attempt at `ro`, as a runner makes it, whose spans wait for `flush_seconds` at most."""
        asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
        opened = (await self.store.open_attempt(asked)).attempt
        assert opened is not None
        url = f"{self.gateway}{urlsplit(opened.base_url).path}"
        opened = opened.model_copy(update={"base_url": url, **changes})
        probe = GatewayProbe(self.gateway)
        allowed = policy(home=home, network="gateway", urls=[self.gateway], ports=probe.relay.ports)
        try:
            async with runner([f"{traced_agents.__file__}:{agent}"], policy=allowed) as agents:
                watched: AgentRunner = agents
                watch = AttemptWatch(self.store, watched, probe, opened, "w")
                watch.spans.flush_seconds = flush_seconds
                outcome = await watch.run(AgentCall.from_opened(opened, agent))
        finally:
            await probe.close()
        assert outcome is not None
        return outcome

    async def spans(self) -> list[Span]:
        return list(await self.client.query_spans("ro"))


@pytest.fixture
async def stage(database: Database, tmp_path: Path) -> AsyncGenerator[Stage]:
    async with staged(database, tmp_path) as made:
        yield made


@asynccontextmanager
async def staged(database: Database, folder: Path) -> AsyncGenerator[Stage]:
    await seed_run(database)
    await seed_rollout(database, "ro")
    await seed_engine(database)
    await database.pool.execute("update engines set url = $1", f"unix:{folder / 'engine.sock'}")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fake_engine(folder / "engine.sock"))
        service = await PostgresStore.create(database, "http://127.0.0.1:1")
        url = await stack.enter_async_context(store_service(service, database))
        store = await stack.enter_async_context(StoreLink(url, TOKEN))
        client = await stack.enter_async_context(LightningStoreClient(url, TOKEN))
        gateway = await stack.enter_async_context(listening_gateway(store, pass_on=store.passed_on))
        yield Stage(database, store, client, gateway.origin)


async def test_a_program_that_knows_the_environment_alone_is_served_and_traced(stage: Stage, tmp_path: Path) -> None:
    outcome = await stage.play(IsolatedRunner, "foreign", tmp_path, network="gateway")
    assert (outcome.succeeded, outcome.message) == (True, "")
    spans = {span.name: span for span in await stage.spans()}
    assert spans["plain program"].attributes["answer"] == 56
    assert await stage.database.pool.fetchval("select count(*) from generations where delivered = 'yes'") == 2


@pytest.mark.parametrize(
    ("runner", "agent"),
    [(runner, agent) for runner in (IsolatedRunner, SharedRunner) for agent in ("ordered", "ordered_async")],
)
async def test_reward_call_reward_call_keeps_its_order(
    stage: Stage, tmp_path: Path, runner: Runner, agent: str
) -> None:
    outcome = await stage.play(runner, agent, tmp_path, flush_seconds=60.0)
    assert (outcome.succeeded, outcome.reward) == (True, 0.75)
    rows = await stage.database.pool.fetch(
        "select sequence_id, 'reward' as what from spans union all select sequence_id, 'call' from generations"
        " order by sequence_id"
    )
    assert [(row["sequence_id"], row["what"]) for row in rows] == [
        (1, "reward"),
        (2, "call"),
        (3, "reward"),
        (4, "call"),
    ]


@pytest.mark.parametrize("runner", [IsolatedRunner, SharedRunner])
async def test_an_agents_tracer_records_its_libraries_and_its_threads(
    stage: Stage, tmp_path: Path, runner: Runner
) -> None:
    outcome = await stage.play(runner, "instrumented", tmp_path)
    assert (outcome.succeeded, outcome.message) == (True, "")
    spans = {span.name: span for span in await stage.spans()}
    agent = spans["agent"]
    assert {"agentlightning.message", "thread"} <= spans.keys()
    assert spans["agentlightning.message"].parent_id == agent.span_id
    calls = [span for span in spans.values() if "gen_ai.response.id" in span.attributes]
    assert [(span.parent_id, span.trace_id) for span in calls] == [(agent.span_id, agent.trace_id)]
    assert agent.resource.attributes["telemetry.sdk.name"] == "opentelemetry"
    assert agent.model_dump()["start_time_unix_nano"] > 10**18
    dropped = await stage.database.pool.fetchval("select spans_dropped from attempts")
    assert dropped == 0
