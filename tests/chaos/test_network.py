"""Runs on a bad network end as on a good one: bit for bit, and within the bounds that docs/guarantees.md states."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from relight.types import names
from tests.chaos.deliveries import deliveries
from tests.chaos.network import EDGES, Network, open_network
from tests.chaos.network_faults import KINDS, LASTING, SWIZZLE, NetworkFault, network_fault
from tests.chaos.stack import ChaosStack, Outcome, chaos_stack, open_folder

STEPS = 5
NOTICED_SECONDS = 40
"""Twice the bound: machines that run tests are slow."""
FAILURES = "select a.failure_class from attempts a join rollouts r using (rollout_id) where r.run = $1"
DONE = """
select (select count(*) from attempts join rollouts using (rollout_id) where run = $1 and attempts.status = 'succeeded')
     + (select count(*) from steps where run = $1 and status = 'recorded')
"""
OPEN = "select count(*) from attempts a join rollouts r using (rollout_id) where r.run = $1 and a.ended_at is null"
UNDELIVERED = """
select count(*) from generations g join attempts a using (attempt_id) join rollouts r on r.rollout_id = a.rollout_id
where r.run = $1 and a.status = 'succeeded' and g.delivered <> 'yes'
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with open_folder() as folder:
        async with open_network() as network, chaos_stack(folder, network, runners=2) as stack:
            yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undisturbed(chaos: ChaosStack) -> Outcome:
    await (await chaos.start("undisturbed", STEPS)).result()
    return await chaos.outcome("undisturbed")


async def under_way(chaos: ChaosStack, run: str) -> WorkflowHandle[object, object]:
    """Start a run; returns when its first step is on record."""
    handle = await chaos.start(run, STEPS)
    async with asyncio.timeout(120):
        while await chaos.recorded(run) < 1:  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.1)
    return handle


async def done(chaos: ChaosStack, run: str) -> int:
    """Rollouts that succeeded and steps that are on record."""
    return int(await chaos.database.pool.fetchval(DONE, run))


async def longest_gap(chaos: ChaosStack, run: str, handle: WorkflowHandle[object, object]) -> float:
    """Wait for the end of a run; the longest time in which nothing was done."""
    ending = asyncio.create_task(handle.result())
    longest, last, before = 0.0, time.monotonic(), await done(chaos, run)
    while not ending.done():
        await asyncio.wait([ending], timeout=0.2)
        now = await done(chaos, run)
        if now > before or ending.done():
            longest, last, before = max(longest, time.monotonic() - last), time.monotonic(), now
    await ending
    return longest


async def failures(chaos: ChaosStack, run: str) -> set[str]:
    """What attempts of a run failed of."""
    rows = await chaos.database.pool.fetch(FAILURES, run)
    return {row["failure_class"] for row in rows} - {None}


def network_of(chaos: ChaosStack) -> Network:
    assert chaos.network is not None
    return chaos.network


def test_a_seed_decides_the_faults_of_the_network() -> None:
    first, second = random.Random(1), random.Random(1)
    drawn = [network_fault(first) for _ in range(300)]
    assert drawn == [network_fault(second) for _ in range(300)]
    assert {fault.kind for fault in drawn} == {*KINDS, SWIZZLE}
    assert {edge for fault in drawn for edge in fault.edges} == set(EDGES)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_run_has_the_same_result_when_each_connection_fails_once(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    kinds = sorted(KINDS.keys() - LASTING)
    handle = await under_way(chaos, "failing")
    for number, edge in enumerate(EDGES):
        await NetworkFault(kinds[number % len(kinds)], (edge,), 0.5).inflict(network_of(chaos))
    await handle.result()
    assert await chaos.outcome("failing") == undisturbed
    assert await failures(chaos, "failing") <= {"infrastructure"}


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_21_waits_end_when_all_connections_are_half_open(chaos: ChaosStack, undisturbed: Outcome) -> None:
    handle = await under_way(chaos, "half-open")
    await NetworkFault("half-open", EDGES, 0).inflict(network_of(chaos))
    gap = await longest_gap(chaos, "half-open", handle)
    print(f"all connections half-open: {gap:.1f} s until something was done")
    assert await chaos.outcome("half-open") == undisturbed
    assert gap < NOTICED_SECONDS
    assert await failures(chaos, "half-open") <= {"infrastructure"}


@pytest.mark.asyncio(loop_scope="module")
async def test_an_attempt_is_lost_only_once_when_the_connections_of_runners_to_temporal_are_half_open(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    """By the time at which its heartbeats are missed, Temporal gives it to no dead connection any more."""
    handle = await under_way(chaos, "unheard")
    async with asyncio.timeout(120):
        while not await chaos.database.pool.fetchval(OPEN, "unheard"):  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.02)
    edges = ("runner->temporal", "runner-2->temporal")
    await NetworkFault("half-open", edges, 0).inflict(network_of(chaos))
    gap = await longest_gap(chaos, "unheard", handle)
    print(f"all connections of runners to Temporal half-open: {gap:.1f} s until something was done")
    lost = await lost_tasks(chaos, "unheard")
    assert set(lost.values()) == {1}, lost
    assert gap < NOTICED_SECONDS
    assert await chaos.outcome("unheard") == undisturbed


async def lost_tasks(chaos: ChaosStack, run: str) -> dict[tuple[str, int], int]:
    """How often each activity of a run missed its heartbeats, of those that did, by workflow and event."""
    lost: dict[tuple[str, int], int] = {}
    async for execution in chaos.client.list_workflows(f'{names.SEARCH_RUN}="{run}"'):
        handle = chaos.client.get_workflow_handle(execution.id, run_id=execution.run_id)
        async for event in handle.fetch_history_events():
            started = event.activity_task_started_event_attributes
            if started.last_failure.HasField("timeout_failure_info"):
                lost[execution.id, event.event_id] = started.attempt - 1
    return lost


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_08_an_answer_that_the_network_lost_is_given_again_and_not_sampled_again(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    handle = await under_way(chaos, "torn")
    edge = network_of(chaos).edges["agents->gateway"]
    ending = asyncio.create_task(handle.result())
    cut = 0
    while not ending.done():
        cut += len(edge.links)
        edge.cut()
        await asyncio.wait([ending], timeout=0.3)
    await ending
    assert cut
    assert await chaos.outcome("torn") == undisturbed
    assert not await chaos.database.pool.fetchval(UNDELIVERED, "torn")
    assert await failures(chaos, "torn") <= {"infrastructure"}


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_02_requests_that_arrive_twice_or_late_or_lose_their_answers_change_nothing(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    network = network_of(chaos)
    edges = [network.edges[f"{name}->store"] for name in ("runner", "runner-2", "gateway")]
    shares = {"twice_share": 0.3, "late_share": 0.3, "lost_share": 0.2}
    async with deliveries(network.real["store"], 1, **shares) as (proxy, delivered):
        handle = await chaos.start("repeated", STEPS)
        for edge in edges:
            edge.target = proxy
            edge.cut()
        ending = asyncio.create_task(handle.result())
        while not ending.done():  # later ones come after their attempt, or after a newer one
            await asyncio.wait([ending], timeout=2)
            await delivered.deliver_late()
        await ending
        await delivered.deliver_late()
        for edge in edges:
            edge.target = network.real["store"]
            edge.cut()
    print(f"deliveries {dict(delivered.counts)}, answers to late ones {dict(delivered.answers)}")
    assert min(delivered.counts[what] for what in ("twice", "late", "lost")) > 10
    assert {status for _, status in delivered.answers} <= {200, 409}
    assert await chaos.outcome("repeated") == undisturbed


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_21_signals_that_come_twice_and_late_change_nothing(chaos: ChaosStack, undisturbed: Outcome) -> None:
    handle = await under_way(chaos, "signalled")
    sent = 0
    ending = asyncio.create_task(handle.result())
    while not ending.done():
        sent += await signal_again(chaos, handle)
        await asyncio.wait([ending], timeout=1)
    await ending
    assert sent
    assert await chaos.outcome("signalled") == undisturbed


async def signal_again(chaos: ChaosStack, handle: WorkflowHandle[object, object]) -> int:
    """Send every signal that a workflow has had once more; returns how many."""
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    events = [event async for event in handle.fetch_history_events() if event.event_type == kind]
    signals = [event.workflow_execution_signaled_event_attributes for event in events]
    unique = {(signalled.signal_name, signalled.input.SerializeToString()): signalled for signalled in signals}
    for signalled in unique.values():
        values = await chaos.client.data_converter.decode(list(signalled.input.payloads))
        try:
            await handle.signal(signalled.signal_name, args=values)
        except RPCError:  # it has ended
            return len(unique)
    return len(unique)


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_02_a_runner_that_was_cut_off_and_superseded_writes_nothing_after_it_reconnects(
    chaos: ChaosStack, undisturbed: Outcome
) -> None:
    """Frozen beyond its heartbeat, then alive again with what it had to say."""
    network = network_of(chaos)
    async with deliveries(network.real["store"], 2) as (proxy, delivered):
        edge = network.edges["runner->store"]
        edge.target = proxy
        handle = await chaos.start("zombie", STEPS)
        pid = await frozen_in_mid_attempt(chaos, "zombie")
        try:
            async with asyncio.timeout(120):
                while "infrastructure" not in await failures(chaos, "zombie"):  # noqa: ASYNC110  # a row
                    await asyncio.sleep(0.2)
        finally:
            os.kill(pid, signal.SIGCONT)
        await handle.result()
        edge.target = network.real["store"]
        edge.cut()
    refused = delivered.refused
    print(f"writes of the zombie that were refused: {dict(refused)}")
    assert await chaos.outcome("zombie") == undisturbed


async def frozen_in_mid_attempt(chaos: ChaosStack, run: str) -> int:
    """Stop the first runner while it holds an open attempt of a run; returns its process id."""
    query = """
    select count(*) from attempts a join rollouts r using (rollout_id) join workers w using (worker_id)
    where r.run = $1 and a.ended_at is null and w.pid = $2
    """
    pid = chaos.stack.process("runner").pid
    assert pid is not None
    async with asyncio.timeout(120):
        while True:
            if await chaos.database.pool.fetchval(query, run, pid):
                os.kill(pid, signal.SIGSTOP)
                if await chaos.database.pool.fetchval(query, run, pid):
                    return pid
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.02)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_has_the_same_result_whichever_connection_fails_and_how(
    chaos: ChaosStack, undisturbed: Outcome, kind: str
) -> None:
    for edge in EDGES:
        run = f"{kind}-{edge}".replace("->", "-").replace(" ", "-")
        handle = await under_way(chaos, run)
        inflicted = asyncio.create_task(NetworkFault(kind, (edge,), 8).inflict(network_of(chaos)))
        gap = await longest_gap(chaos, run, handle)
        await inflicted
        print(f"{kind} {edge}: {gap:.1f} s until something was done")
        assert await chaos.outcome(run) == undisturbed
        assert gap < NOTICED_SECONDS
        assert await failures(chaos, run) <= {"infrastructure"}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", range(3))
async def test_a_run_has_the_same_result_after_connections_are_cut_one_by_one_and_restored_in_another_order(
    chaos: ChaosStack, undisturbed: Outcome, seed: int
) -> None:
    draw = random.Random(seed)
    edges = tuple(draw.sample(EDGES, len(EDGES)))
    run = f"swizzled-{seed}"
    handle = await under_way(chaos, run)
    healed = tuple(draw.sample(edges, len(edges)))
    await NetworkFault(SWIZZLE, edges, 20, healed=healed).inflict(network_of(chaos))
    await handle.result()
    assert await chaos.outcome(run) == undisturbed
    assert await failures(chaos, run) <= {"infrastructure"}
