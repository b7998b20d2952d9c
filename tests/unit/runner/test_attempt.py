"""One attempt, watched: real processes, the in-memory store, a gateway that says what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from relight.runner.attempt import AttemptWatch
from relight.runner.calls import AgentCall
from relight.runner.gateway_probe import CallStatus, GatewayProbe
from relight.runner.isolated import AgentRunner, IsolatedRunner
from relight.runner.shared import SharedRunner
from relight.store.memory import MemoryStore
from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.wire import AttemptOutcome, OpenedAttempt, OpenRequest
from tests.unit.runner import nasty_agents

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVED = [f"{nasty_agents.__file__}:{name}" for name in ("well", "raises", "busy", "busy_async", "patient", "exits")]


class Gateway(GatewayProbe):
    """Answers without a network."""

    def __init__(self, *, there: bool = True, waited_seconds: float = 0.0) -> None:
        super().__init__("http://127.0.0.1:9")
        self.there = there
        self.waited_seconds = waited_seconds

    async def reachable(self) -> bool:
        return self.there

    async def status(self, opened: OpenedAttempt) -> CallStatus | None:
        return CallStatus(self.waited_seconds, None) if self.there else None


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def agents() -> AsyncGenerator[IsolatedRunner]:
    async with IsolatedRunner(SERVED) as runner:
        yield runner


async def play(
    agents: AgentRunner, agent: str, gateway: Gateway, config: RolloutConfig | None = None, rollout_id: str = "r1"
) -> AttemptOutcome | None:
    store = MemoryStore()
    store.add_rollout(rollout_id, input={}, config=config)
    request = OpenRequest(rollout_id=rollout_id, try_number=1, execution="e1", worker_id="w1")
    opened = (await store.open_attempt(request)).attempt
    assert opened is not None
    watch = AttemptWatch(store, agents, gateway, opened, "w1")
    return await watch.run(AgentCall.from_opened(opened, agent))


async def test_an_agent_that_raises_is_an_agent_error_with_its_own_words(agents: IsolatedRunner) -> None:
    outcome = await play(agents, "raises", Gateway())
    assert outcome is not None
    assert outcome.failure_class is FailureClass.AGENT_ERROR
    assert outcome.message


@pytest.mark.parametrize("agent", ["raises", "exits"])
async def test_what_fails_while_the_gateway_is_out_of_reach_is_infrastructure(
    agents: IsolatedRunner, agent: str
) -> None:
    outcome = await play(agents, agent, Gateway(there=False))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.INFRASTRUCTURE
    assert outcome.message.startswith("the gateway was out of reach")


async def test_an_agent_that_runs_too_long_is_killed_as_a_timeout(agents: IsolatedRunner) -> None:
    outcome = await play(agents, "busy", Gateway(), RolloutConfig(timeout_seconds=0.3))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.TIMEOUT
    assert "timeout_seconds=0.3" in outcome.message


async def test_one_that_gives_no_sign_of_life_is_killed_as_unresponsive(agents: IsolatedRunner) -> None:
    outcome = await play(agents, "busy", Gateway(), RolloutConfig(unresponsive_seconds=0.3))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.UNRESPONSIVE


async def test_time_that_the_platform_spent_counts_for_no_deadline(agents: IsolatedRunner) -> None:
    gateway = Gateway(waited_seconds=1.0)
    outcome = await play(agents, "busy", gateway, RolloutConfig(timeout_seconds=0.3))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.TIMEOUT
    assert "1.0 s of platform time not counted" in outcome.message


async def test_who_blocks_a_shared_process_gets_too_late_and_those_beside_it_do_not() -> None:
    config = RolloutConfig(timeout_seconds=5.0)
    async with SharedRunner(SERVED, cancel_grace_seconds=0.5) as shared, asyncio.TaskGroup() as group:
        beside = [group.create_task(play(shared, "patient", Gateway(), config, f"beside-{n}")) for n in range(2)]
        await asyncio.sleep(1.0)
        blocking = await play(shared, "busy_async", Gateway(), config, "blocking")
    assert blocking is not None
    assert blocking.failure_class is FailureClass.TIMEOUT
    for one in beside:
        outcome = one.result()
        assert outcome is not None
        assert outcome.failure_class is FailureClass.INFRASTRUCTURE  # and is tried again
        assert "was killed" in outcome.message
