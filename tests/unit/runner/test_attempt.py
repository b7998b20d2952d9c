"""One attempt, watched: real processes, the in-memory store, a gateway that says what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from relight.runner.agent_call import AgentCall
from relight.runner.attempt import AttemptWatch
from relight.runner.gateway_probe import CallStatus, GatewayProbe
from relight.runner.process_isolation import AgentRunner, IsolatedRunner
from relight.runner.shared_isolation import SharedRunner
from relight.store.memory.attempts import MemoryAttemptStore
from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.wire import AttemptOutcome, OpenedAttempt, OpenRequest
from tests.support.orchestration import eventually
from tests.unit.runner import misbehaving_agents

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVED = [
    f"{misbehaving_agents.__file__}:{name}"
    for name in ("well", "raises", "busy", "busy_async", "patient", "exits", "reports_rollout", "floods_spans")
]


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
    async with IsolatedRunner(SERVED, max_spans=100) as runner:
        yield runner


async def play(
    agents: AgentRunner,
    agent: str,
    gateway: Gateway,
    config: RolloutConfig | None = None,
    rollout_id: str = "r1",
    store: MemoryAttemptStore | None = None,
    **task: int,
) -> AttemptOutcome | None:
    store = store or MemoryAttemptStore()
    store.add_rollout(rollout_id, input=task, config=config)
    request = OpenRequest(rollout_id=rollout_id, try_number=1, execution="e1", worker_id="w1")
    opened = (await store.open_attempt(request)).attempt
    assert opened is not None
    watch = AttemptWatch(store, agents, gateway, opened, "w1")
    return await watch.run(AgentCall.from_opened(opened, agent))


async def test_an_agent_that_raises_is_an_agent_error_with_its_message(agents: IsolatedRunner) -> None:
    outcome = await play(agents, "raises", Gateway())
    assert outcome is not None
    assert outcome.failure_class is FailureClass.AGENT_ERROR
    assert outcome.message


@pytest.mark.parametrize("agent", ["raises", "exits"])
async def test_a_failure_without_a_call_is_the_agents_though_the_gateway_is_down(
    agents: IsolatedRunner, agent: str
) -> None:
    outcome = await play(agents, agent, Gateway(there=False))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.AGENT_ERROR


async def test_an_agent_that_runs_too_long_is_killed_as_a_timeout(agents: IsolatedRunner) -> None:
    outcome = await play(agents, "busy", Gateway(), RolloutConfig(timeout_seconds=0.3))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.TIMEOUT
    assert "timeout_seconds=0.3" in outcome.message


async def test_an_agent_without_heartbeats_is_killed_as_unresponsive(agents: IsolatedRunner) -> None:
    outcome = await play(agents, "busy", Gateway(), RolloutConfig(unresponsive_seconds=0.3))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.UNRESPONSIVE


async def test_spans_beyond_the_allowance_are_counted_at_their_attempt(
    agents: IsolatedRunner,
) -> None:
    store = MemoryAttemptStore()
    outcome = await play(agents, "floods_spans", Gateway(), store=store, count=500)
    assert outcome is not None
    assert outcome.reward == 0.5
    assert [attempt.spans_dropped for attempt in store.rollouts["r1"].attempts] == [401]


async def test_time_that_the_platform_spent_counts_for_no_deadline(agents: IsolatedRunner) -> None:
    gateway = Gateway(waited_seconds=1.0)
    outcome = await play(agents, "busy", gateway, RolloutConfig(timeout_seconds=0.3))
    assert outcome is not None
    assert outcome.failure_class is FailureClass.TIMEOUT
    assert "1.0 s of platform time not counted" in outcome.message


async def test_an_agent_that_blocks_a_shared_process_times_out_and_its_neighbours_do_not() -> None:
    config, stores = RolloutConfig(timeout_seconds=5.0), [MemoryAttemptStore(), MemoryAttemptStore()]

    async def both_run() -> bool:
        rows = [row for store in stores for row in store.rollouts.values()]
        return [len(row.spans) for row in rows] == [1, 1]

    async with SharedRunner(SERVED, cancel_grace_seconds=0.5) as shared, asyncio.TaskGroup() as group:
        beside = [
            group.create_task(play(shared, "patient", Gateway(), config, f"beside-{number}", store))
            for number, store in enumerate(stores)
        ]
        await eventually(both_run)
        blocking = await play(shared, "busy_async", Gateway(), config, "blocking")
    assert blocking is not None
    assert blocking.failure_class is FailureClass.TIMEOUT
    for one in beside:
        outcome = one.result()
        assert outcome is not None
        assert outcome.failure_class is FailureClass.INFRASTRUCTURE  # and is tried again
        assert "was killed" in outcome.message


async def test_an_agent_sees_the_metadata_of_its_rollout_and_its_further_rewards_and_feedback_are_kept(
    agents: IsolatedRunner,
) -> None:
    store = MemoryAttemptStore()
    row = store.add_rollout("r1", input={}, metadata={"source": "algebra"}, resources_id="rs-7")
    opened = (
        await store.open_attempt(OpenRequest(rollout_id="r1", try_number=1, execution="e1", worker_id="w1"))
    ).attempt
    assert opened is not None
    outcome = await AttemptWatch(store, agents, Gateway(), opened, "w1").run(
        AgentCall.from_opened(opened, "reports_rollout")
    )
    assert outcome is not None
    assert outcome.reward == 1.0
    assert row.newest is not None
    assert (row.newest.left.rewards, row.newest.left.feedback) == ({"primary": 1.0, "known": 1.0}, "as it was enqueued")
