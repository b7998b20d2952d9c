"""Rollouts from outside that a workflow drives: written with their outbox row, started by the next outbox reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import Worker

from relight.activities.orchestrator import OrchestratorActivities
from relight.errors import ConflictError, InvalidRequestError
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.queue.outbox import dispatch, keep_dispatching, start_lost_again
from relight.types import names
from relight.types.rollout import AttemptStatus, RolloutStatus
from relight.types.store import Dispatch, EnqueueRolloutRequest
from relight.types.wire import FinishRequest, OpenedAttempt
from relight.worker.orchestrator import activities_of, make_worker
from tests.support.lightning_kit import span_of
from tests.support.orchestration import Agent, ScriptedRunner, eventually

BY_WORKFLOW = Dispatch(by="workflow", agent="outside")


async def well(attempt: OpenedAttempt) -> FinishRequest:
    """The agent does well."""
    return FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=0.5)


@asynccontextmanager
async def platform(
    temporal: Client, database: Database, folder: Path, agent: Agent = well
) -> AsyncGenerator[ScriptedRunner]:
    """Orchestrators and a scripted runner, on queues of this test."""
    runner = ScriptedRunner(await PostgresStore.create(database, "http://gateway"), agent)
    activities = activities_of(OrchestratorActivities(database, temporal, folder))
    queue = names.runner_queue(names.RUNNER_QUEUE, "outside")
    async with (
        make_worker(temporal, names.ORCHESTRATOR_QUEUE, activities),
        Worker(temporal, task_queue=queue, activities=[runner.run_attempt], max_concurrent_activities=50),
    ):
        yield runner


async def test_a_rollout_from_outside_is_driven_by_a_workflow(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    store = await PostgresLightningStore.create(database)
    async with platform(temporal, database, tmp_path) as runner, asyncio.TaskGroup() as group:
        loops = [group.create_task(keep_dispatching(database, temporal)) for _ in range(2)]
        made = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=n, dispatch=BY_WORKFLOW, metadata={"n": n}) for n in range(10)]
        )
        assert {rollout.status for rollout in made} == {"queuing"}
        assert await store.dequeue_rollout() is None
        ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in made], timeout=60)
        for loop in loops:
            loop.cancel()
    assert [(rollout.status, rollout.reward, rollout.metadata["n"]) for rollout in ended] == [
        ("succeeded", 0.5, n) for n in range(10)
    ]
    assert set(runner.ran.values()) == {1}
    await store.aclose()


async def test_an_outbox_row_that_is_processed_twice_starts_one_workflow(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    """As after a crash between Temporal's answer and the mark in the outbox."""
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
    assert await dispatch(database, temporal) == 1
    handle = temporal.get_workflow_handle(names.rollout_workflow_id(made.rollout_id))
    described = await handle.describe()
    first = described.run_id
    assert await described.static_summary() == "rollout from outside"
    assert not described.typed_search_attributes.search_attributes  # it belongs to no run and to no data set
    await database.pool.execute("update outbox set started_at = null")
    assert await dispatch(database, temporal) == 1
    assert (await handle.describe()).run_id == first
    assert await dispatch(database, temporal) == 0
    await handle.terminate()


async def test_a_workflow_that_temporal_lost_is_started_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
    await dispatch(database, temporal)
    await temporal.get_workflow_handle(names.rollout_workflow_id(made.rollout_id)).terminate("lost")
    assert await start_lost_again(database, temporal, after_seconds=3600) == 0
    async with platform(temporal, database, tmp_path):
        assert await start_lost_again(database, temporal, after_seconds=0) == 1
        (ended,) = await store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60)
    assert ended.status == "succeeded"
    assert await start_lost_again(database, temporal, after_seconds=0) == 0
    await store.aclose()


async def test_cancelling_ends_the_workflow_too(temporal: Client, database: Database, tmp_path: Path) -> None:
    store = await PostgresLightningStore.create(database)
    begun = asyncio.Event()

    async def endless(attempt: OpenedAttempt) -> FinishRequest:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("no code sets it")

    async with platform(temporal, database, tmp_path, endless):
        made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
        await dispatch(database, temporal)
        await asyncio.wait_for(begun.wait(), 30)
        assert (await store.cancel_rollout(made.rollout_id, "enough")).status == "cancelled"
        await dispatch(database, temporal)
        handle = temporal.get_workflow_handle(names.rollout_workflow_id(made.rollout_id))

        async def closed() -> bool:
            return (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED

        await eventually(closed)
    (attempt,) = await store.query_attempts(made.rollout_id)
    assert (attempt.status, attempt.failure_class) == ("failed", "cancelled")
    assert await database.pool.fetchval("select failure from rollouts") == "enough"


async def test_what_was_cancelled_before_its_start_is_never_started(temporal: Client, database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
    await store.cancel_rollout(made.rollout_id)
    await dispatch(database, temporal)
    listed = [workflow async for workflow in temporal.list_workflows(f"WorkflowId = 'rollout/{made.rollout_id}'")]
    assert listed == []


async def test_only_spans_may_be_added_from_outside_to_what_a_workflow_drives(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    store = await PostgresLightningStore.create(database)
    begun, over = asyncio.Event(), asyncio.Event()

    async def patient(attempt: OpenedAttempt) -> FinishRequest:
        begun.set()
        await over.wait()
        return await well(attempt)

    async with platform(temporal, database, tmp_path, patient):
        made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
        await dispatch(database, temporal)
        await asyncio.wait_for(begun.wait(), 30)
        for call in (
            lambda: store.update_attempt(made.rollout_id, "latest", status=AttemptStatus.SUCCEEDED),
            lambda: store.update_rollout(made.rollout_id, status=RolloutStatus.SUCCEEDED),
            lambda: store.start_attempt(made.rollout_id),
        ):
            with pytest.raises(ConflictError, match="workflow"):
                await call()
        (attempt,) = await store.query_attempts(made.rollout_id)
        assert await store.add_span(span_of(attempt))
        assert (await store.query_attempts(made.rollout_id)).items == [attempt]
        over.set()
        (ended,) = await store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60)
    assert ended.status == "succeeded"
    await store.aclose()


async def test_a_dispatch_without_an_agent_is_refused(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    with pytest.raises(InvalidRequestError, match="agent"):
        await store.enqueue_rollout("x", dispatch=Dispatch(by="workflow"))
    assert (await store.query_rollouts()).total == 0


@asynccontextmanager
async def cable(target: str) -> AsyncGenerator[str]:
    """A connection to an address, that is cut at the end."""
    ends: list[asyncio.StreamWriter] = []

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = target.split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        ends.extend((writer, far_writer))
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for end in ends:
            end.close()


async def test_outbox_rows_wait_while_temporal_is_down(
    temporal: Client, temporal_address: str, database: Database, tmp_path: Path
) -> None:
    store = await PostgresLightningStore.create(database)
    made = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
    async with cable(temporal_address) as address:
        away = await Client.connect(address, data_converter=temporal.data_converter)
    with pytest.raises(RPCError):
        await dispatch(database, away)
    assert await database.pool.fetchval("select count(*) from outbox where started_at is null") == 1
    async with platform(temporal, database, tmp_path):
        assert await dispatch(database, temporal) == 1
        (ended,) = await store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60)
    assert ended.status == "succeeded"
    await store.aclose()


async def test_an_outbox_row_that_temporal_refuses_fails_its_rollout_and_delays_no_other(
    temporal: Client, database: Database
) -> None:
    store = await PostgresLightningStore.create(database)
    bad = await store.enqueue_rollout("x", dispatch=BY_WORKFLOW)
    good = await store.enqueue_rollout("y", dispatch=BY_WORKFLOW)
    await database.pool.execute(
        "update outbox set task_queue = repeat('q', 2000) where workflow_id = 'rollout/' || $1", bad.rollout_id
    )
    assert await dispatch(database, temporal) == 2
    (failed,) = await store.wait_for_rollouts(rollout_ids=[bad.rollout_id], timeout=10)
    assert (failed.status, failed.failure_class) == ("failed", "infrastructure")
    handle = temporal.get_workflow_handle(names.rollout_workflow_id(good.rollout_id))
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    await handle.terminate()
    await store.aclose()
