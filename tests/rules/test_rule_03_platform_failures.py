"""Rule 3: a platform failure is never the agent's. Real agents in processes of their own, a real store."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from relight.errors import ConflictError, StoreError
from relight.runner.agent_call import AgentCall
from relight.runner.attempt import AttemptWatch
from relight.runner.gateway_probe import CallStatus, GatewayProbe
from relight.runner.process_isolation import AgentRunner, IsolatedRunner
from relight.runner.shared_isolation import SharedRunner
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.rollout import FailureClass
from relight.types.wire import AttemptOutcome, OpenedAttempt, SpanRecord
from tests.rules import calling_agents
from tests.rules.kit import ManualRun, begin
from tests.unit.runner import misbehaving_agents

SERVED = [f"{misbehaving_agents.__file__}:busy"]
CALLERS = (
    *("computes", "computes_async", "swallows", "swallows_async", "raises"),
    *("asks_when_it_is_gone", "asks_again", "gives_up", "lingers"),
)
NOWHERE = "http://127.0.0.1:9"
"""No server listens there."""


class Present(GatewayProbe):
    async def reachable(self) -> bool:
        return True

    async def status(self, opened: OpenedAttempt) -> CallStatus | None:
        return CallStatus(0.0, None)


@pytest_asyncio.fixture
async def agents() -> AsyncGenerator[IsolatedRunner]:
    async with IsolatedRunner(SERVED) as runner:
        yield runner


async def opened_of(run: ManualRun) -> OpenedAttempt:
    await run.plan(1)
    return await run.opened((await run.rollouts(1))[0]["rollout_id"])


class GatewayProcess:
    """A process that stands for the gateway, on an address of its own."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = (sys.executable, "-m", "tests.rules.gateway_process", str(self._port))
        self._process = await asyncio.create_subprocess_exec(*command)
        probe = GatewayProbe(self.url)
        async with asyncio.timeout(60):
            while not await probe.reachable():  # noqa: ASYNC110  # a process
                await asyncio.sleep(0.05)
        await probe.close()

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal; with SIGKILL, returns when it is gone."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
            if number is signal.SIGKILL:
                await self._process.wait()


@pytest_asyncio.fixture
async def gateway(unused_tcp_port: int) -> AsyncGenerator[GatewayProcess]:
    process = GatewayProcess(unused_tcp_port)
    await process.start()
    yield process
    await process.end()


@pytest_asyncio.fixture(params=[IsolatedRunner, SharedRunner])
async def callers(request: pytest.FixtureRequest) -> AsyncGenerator[AgentRunner]:
    """Agents that call a model, in processes of their own and in one that they share."""
    async with request.param([f"{calling_agents.__file__}:{name}" for name in CALLERS]) as runner:
        yield runner


class Played:
    """One attempt at a rollout of a run, by an agent that says in files how far it is."""

    def __init__(self, run: ManualRun, opened: OpenedAttempt, gateway: GatewayProcess, folder: Path) -> None:
        self.run = run
        self.folder = folder
        path = urlsplit(opened.base_url).path
        self.opened = opened.model_copy(update={"base_url": gateway.url + path})
        self.probe = GatewayProbe(gateway.url)

    def start(self, agents: AgentRunner, agent: str) -> asyncio.Task[AttemptOutcome | None]:
        call = replace(AgentCall.from_opened(self.opened, agent), task={"folder": str(self.folder)})
        return asyncio.create_task(AttemptWatch(self.run.store, agents, self.probe, self.opened, "w").run(call))

    async def said(self, what: str) -> None:
        async with asyncio.timeout(60):
            while not (self.folder / what).exists():  # noqa: ASYNC110  # a process says it
                await asyncio.sleep(0.01)

    async def row(self) -> dict[str, Any]:
        await self.probe.close()
        return (await self.run.rollouts(1))[0]


async def played(database: Database, folder: Path, gateway: GatewayProcess, **changes: Any) -> Played:
    run = await begin(database, folder, "cut", **changes)
    return Played(run, await opened_of(run), gateway, folder)


@pytest.mark.parametrize("agent", ["computes", "computes_async"])
async def test_an_attempt_whose_calls_were_all_answered_counts_though_the_gateway_died_before_it_ended(
    database: Database, tmp_path: Path, gateway: GatewayProcess, callers: AgentRunner, agent: str
) -> None:
    attempt = await played(database, tmp_path, gateway)
    ending = attempt.start(callers, agent)
    await attempt.said("ready")
    await gateway.end()
    (tmp_path / "go").touch()
    outcome = await ending
    assert outcome is not None
    assert (outcome.succeeded, outcome.reward) == (True, 0.25), outcome.message
    assert ((await attempt.row())["status"], (await attempt.row())["reward"]) == ("succeeded", 0.25)


@pytest.mark.parametrize("grader", [None, "judge"])
@pytest.mark.parametrize("agent", ["swallows", "swallows_async", "raises"])
async def test_an_attempt_whose_call_the_gateways_death_cut_is_infrastructure_whatever_the_agent_did(
    database: Database, tmp_path: Path, gateway: GatewayProcess, callers: AgentRunner, agent: str, grader: str | None
) -> None:
    attempt = await played(database, tmp_path, gateway, grader=grader)
    ending = attempt.start(callers, agent)
    await attempt.said("ready")
    await gateway.end()
    outcome = await ending
    assert outcome is not None
    assert (outcome.failure_class, outcome.reward) == (FailureClass.INFRASTRUCTURE, None), outcome.message
    assert (tmp_path / "raised").exists() == (agent != "raises")
    await attempt.run.opened(attempt.opened.rollout_id)  # and the same try is made again
    row = await attempt.row()
    assert (row["status"], row["attempts"], row["reward"]) == ("preparing", 2, None)


async def test_an_attempt_that_lost_a_call_is_infrastructure_also_where_it_is_ended_for_its_deadline(
    database: Database, tmp_path: Path, gateway: GatewayProcess, callers: AgentRunner
) -> None:
    attempt = await played(database, tmp_path, gateway, rollout={"timeout_seconds": 3})
    ending = attempt.start(callers, "lingers")
    await attempt.said("ready")
    await gateway.end()
    await attempt.said("raised")
    await gateway.start()
    outcome = await ending
    assert outcome is not None
    assert outcome.failure_class is FailureClass.INFRASTRUCTURE, outcome.message
    assert "timeout_seconds=3" in outcome.message
    await attempt.probe.close()


async def test_an_attempt_whose_call_was_refused_is_infrastructure_even_if_the_agent_hides_it(
    database: Database, tmp_path: Path, gateway: GatewayProcess, callers: AgentRunner
) -> None:
    attempt = await played(database, tmp_path, gateway)
    ending = attempt.start(callers, "asks_when_it_is_gone")
    await attempt.said("ready")
    await gateway.end()
    (tmp_path / "go").touch()
    outcome = await ending
    assert outcome is not None
    assert outcome.failure_class is FailureClass.INFRASTRUCTURE
    assert (tmp_path / "raised").exists()
    await attempt.probe.close()


async def test_a_call_that_was_cut_and_answered_when_it_was_repeated_costs_an_attempt_nothing(
    database: Database, tmp_path: Path, gateway: GatewayProcess, callers: AgentRunner
) -> None:
    attempt = await played(database, tmp_path, gateway)
    ending = attempt.start(callers, "asks_again")
    await attempt.said("ready")
    await gateway.end()
    await gateway.start()
    outcome = await ending
    assert outcome is not None
    assert (outcome.succeeded, outcome.reward) == (True, 0.75), outcome.message
    await attempt.probe.close()


@pytest.mark.parametrize("frozen", [True, False])
async def test_a_call_that_the_agent_aborted_is_no_lost_call_unless_the_gateway_was_down(
    database: Database, tmp_path: Path, gateway: GatewayProcess, callers: AgentRunner, frozen: bool
) -> None:
    attempt = await played(database, tmp_path, gateway)
    ending = attempt.start(callers, "gives_up")
    await attempt.said("ready")
    if frozen:
        await gateway.end(signal.SIGSTOP)
    (tmp_path / "go").touch()
    outcome = await ending
    assert outcome is not None
    assert outcome.failure_class is (FailureClass.INFRASTRUCTURE if frozen else None), outcome.message
    assert outcome.reward == (None if frozen else 1.0)
    assert (tmp_path / "raised").exists()
    await attempt.probe.close()


class Flickering(PostgresStore):
    """Away at the first heartbeat and the first spans, for longer than a client is patient."""

    beats = 0
    spans = 0

    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        self.beats += 1
        if self.beats == 1:
            raise StoreError
        await super().heartbeat(attempt_id, fence, worker_id)

    async def add_spans(self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[SpanRecord]) -> int:
        self.spans += 1
        if self.spans == 1:
            raise StoreError
        return await super().add_spans(rollout_id, attempt_id, fence, spans)


async def test_a_runner_gets_its_conflict_after_an_outage_of_the_store(
    database: Database, tmp_path: Path, agents: IsolatedRunner
) -> None:
    run = await begin(database, tmp_path, "flicker")
    opened = await opened_of(run)
    store = await Flickering.create(database, "http://gateway")
    watch = AttemptWatch(store, agents, Present(NOWHERE), opened, "w")
    watch.heartbeat_seconds, watch.spans.flush_seconds = 0.2, 0.1
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
