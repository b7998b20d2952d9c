"""Rule 19: a run that lost its driver by no client's hand is driven again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from relight.operators import command_requests
from relight.operators.run_workflows import RunWorkflowState, run_workflow_state
from relight.stack.ports import any_free
from relight.store.database import Database
from relight.store.runs.rows import RunRow
from relight.types import names
from relight.types.payloads import Notice
from relight.worker import reconciler
from relight.worker.reconciler import BACKOFF_SECONDS, reconcile
from tests.integration.operators.kit import Gate, at, audit, trained_twice
from tests.rules.kit import begin
from tests.support.orchestration import Cluster, cluster, eventually, run_file, write_tasks
from tests.support.temporal import temporal_dev_server

FILE = run_file(data="train.jsonl")
EVENTS = 400
"""At which the server below terminates a workflow."""


@pytest.fixture
def strict_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Temporal server with a short limit for histories."""
    flags = ("--dynamic-config-value", f"limit.historyCount.error={EVENTS}")
    with temporal_dev_server(tmp_path_factory.mktemp("strict-temporal"), *flags) as address:
        yield address


@asynccontextmanager
async def server(folder: Path, port: int) -> AsyncGenerator[str]:
    """A Temporal server with an empty database on a given port."""
    booting = temporal_dev_server(folder, port=port)
    address = await asyncio.to_thread(booting.__enter__)
    try:
        yield address
    finally:
        await asyncio.to_thread(booting.__exit__, None, None, None)


async def connect(address: str) -> Client:
    return await Client.connect(address, data_converter=pydantic_data_converter)


async def until_one_is_held(gate: Gate, database: Database, run: str) -> None:
    """Step 2 is open, one of its rollouts alone is under way, and the run is old enough to be judged."""
    await gate.until(lambda: bool(gate.held))

    async def others_done() -> bool:
        text = "select count(*) from rollouts where run = $1 and step = 2 and ended_at is null"
        return await database.pool.fetchval(text, run) == 1

    await eventually(others_done)
    await database.pool.execute("update runs set created_at = now() - interval '1 minute'")


async def is_driven_again(client: Client, stack: Cluster, gate: Gate, database: Database, run: str, why: str) -> None:
    """The reconciler says why and drives the run at once, and it ends as if nothing had been."""
    before = {name: count for name, count in stack.runner.ran.items() if not name.endswith("s0002-g01-i3")}
    assert await reconcile(database, client) == [run]
    assert await reconcile(database, client) == []
    reason = (await audit(database, run))[0]["after"]["reason"]
    assert reason == f"no workflow drives it: train/{run} {why}; an orchestrator starts a new workflow"
    gate.open.set()
    await client.get_workflow_handle(names.train_id(run)).result()
    assert {name: stack.runner.ran[name] for name in before} == before
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert await trained_twice(database, run) == 0
    row = await database.pool.fetchrow("select status, epoch, error, drive_again_at from runs where run = $1", run)
    assert tuple(row) == ("finished", 2, None, None)
    done = [(entry["actor"], entry["action"]) for entry in await audit(database, run)]
    assert done == [("relight", "interrupt"), ("relight", "drive_again"), ("relight", "resume")]


async def test_a_run_that_the_server_terminated_at_its_limit_is_driven_again(
    strict_address: str, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    client = await connect(strict_address)
    async with cluster(client, database, tmp_path, gate) as stack:
        handle = await stack.start("limited", FILE)
        await until_one_is_held(gate, database, "limited")

        async def is_terminated() -> bool:
            with suppress(RPCError):  # it takes no signals any more
                for _ in range(20):
                    await handle.signal(names.NOTICE, Notice(run="limited", epoch=99))
            return (await handle.describe()).status.name == "TERMINATED"

        await eventually(is_terminated)
        why = "was terminated by the Temporal server, reason: Workflow history count exceeds limit."
        await is_driven_again(client, stack, gate, database, "limited", why)


async def test_a_run_whose_workflow_timed_out_is_driven_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle: Any = await temporal.start_workflow(
            names.TRAINING_WORKFLOW,
            FILE,
            id=names.train_id("hasty"),
            task_queue=names.ORCHESTRATOR_QUEUE,
            execution_timeout=timedelta(seconds=8),
        )
        await until_one_is_held(gate, database, "hasty")

        async def timed_out() -> bool:
            return (await handle.describe()).status.name == "TIMED_OUT"

        await eventually(timed_out)
        why = "timed out: it was started with a timeout, which Relight never sets"
        await is_driven_again(temporal, stack, gate, database, "hasty", why)


async def test_a_run_whose_temporal_server_lost_its_database_is_driven_again_by_that_server_alone(
    temporal: Client, database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_tasks(tmp_path)
    gate, port = Gate(at("s0002-g01-i3")), any_free()
    async with server(tmp_path_factory.mktemp("first-temporal"), port) as address:
        client = await connect(address)
        async with cluster(client, database, tmp_path, gate) as stack:
            await stack.start("bereft", FILE)
            await until_one_is_held(gate, database, "bereft")
            assert await reconcile(database, temporal) == []  # another server's run is none of its business
            assert await reconcile(database, client) == []
            ran, updates = stack.runner.ran, stack.gpu.updates
    async with server(tmp_path_factory.mktemp("second-temporal"), port) as address:
        client = await connect(address)
        assert await reconcile(database, temporal) == []
        async with cluster(client, database, tmp_path, gate) as stack:
            stack.runner.ran, stack.gpu.updates = ran, updates
            why = f"is unknown in namespace default at {address}"
            await is_driven_again(client, stack, gate, database, "bereft", why)


async def test_a_run_that_an_operator_terminated_stays_ended_until_it_is_resumed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0002-g01-i3"))
    async with cluster(temporal, database, tmp_path, gate) as stack:
        handle = await stack.start("ended", FILE)
        await until_one_is_held(gate, database, "ended")
        await handle.terminate(reason="enough")
        assert await reconcile(database, temporal) == ["ended"]
        await database.pool.execute("update audit set created_at = created_at - interval '1 day'")
        assert await reconcile(database, temporal) == []
        assert (await handle.describe()).status.name == "TERMINATED"
        gate.open.set()
    row = await database.pool.fetchrow("select status, error, drive_again_at from runs where run = 'ended'")
    assert (row["status"], row["drive_again_at"]) == ("interrupted", None)
    assert f"was terminated by {temporal.identity}, reason: enough; `relight resume ended`" in row["error"]


async def test_a_run_is_driven_again_automatically_at_most_three_times_an_hour(
    database: Database, tmp_path: Path
) -> None:
    await begin(database, tmp_path, "failing")
    pool, backoff, moments = database.pool, list(BACKOFF_SECONDS), list[int]()
    await database.value("interrupt_run", "failing", 1, "lost", True, backoff)
    for minute in range(240):
        if await database.value("drive_again", "failing", 1, len(backoff)):
            moments.append(minute)  # it begins, and is lost at once
            await pool.execute("update runs set status = 'running', drive_again_at = null")
            await database.value("interrupt_run", "failing", 1, "lost", True, backoff)
        await pool.execute("update audit set created_at = created_at - interval '1 minute'")
        await pool.execute("update runs set drive_again_at = drive_again_at - interval '1 minute'")
    assert max(sum(moment <= other < moment + 60 for other in moments) for moment in moments) == 3
    assert moments[:3] == [0, 1, 6]
    assert moments[-1] > 180


async def test_a_start_that_is_lost_before_it_begins_counts_among_the_three_of_an_hour(
    database: Database, tmp_path: Path
) -> None:
    await begin(database, tmp_path, "luckless")
    pool, backoff, moments = database.pool, list(BACKOFF_SECONDS), list[int]()
    await database.value("interrupt_run", "luckless", 1, "lost", True, backoff)
    for minute in range(240):
        if await database.value("drive_again", "luckless", 1, len(backoff)):
            moments.append(minute)
            if len(moments) < 3:  # it begins, and is lost at once; later ones never begin
                await pool.execute("update runs set status = 'running', drive_again_at = null")
                await database.value("interrupt_run", "luckless", 1, "lost", True, backoff)
        await pool.execute("update audit set created_at = created_at - interval '1 minute'")
        await pool.execute("update runs set drive_again_at = drive_again_at - interval '1 minute'")
    assert max(sum(moment <= other < moment + 60 for other in moments) for moment in moments) == 3
    assert moments[:4] == [0, 1, 6, 60]


async def test_a_server_at_another_address_with_the_same_identity_is_the_one_that_lost_the_run(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "renamed")
    before = temporal.service_client.config.target_host.replace("127.0.0.1", "localhost")
    old = "update runs set temporal_address = $1, created_at = now() - interval '1 minute'"
    await database.pool.execute(old, before)
    assert await reconcile(database, temporal) == ["renamed"]
    assert [row["action"] for row in await audit(database, "renamed")] == ["interrupt", "drive_again"]
    assert "is unknown in namespace default at 127.0.0.1" in await run.value("error")
    await temporal.get_workflow_handle(names.train_id("renamed")).terminate()


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [("temporal_namespace", "another", []), ("temporal_address", "127.0.0.1:1", ["moved"])],
)
async def test_a_run_of_another_namespace_is_not_driven_and_neither_is_one_whose_server_is_gone(
    temporal: Client, database: Database, tmp_path: Path, column: str, value: str, found: list[str]
) -> None:
    run = await begin(database, tmp_path, "moved")
    old = f"update runs set {column} = $1, created_at = now() - interval '1 minute'"
    await database.pool.execute(old, value)
    assert await reconcile(database, temporal) == found
    assert await reconcile(database, temporal) == []
    assert await run.value("status") == ("interrupted" if found else "running")
    if found:
        here = temporal.service_client.config.target_host
        assert await run.value("error") == (
            f"no workflow drives it: train/moved is unknown in namespace default at {here}, and 127.0.0.1:1 does not "
            "answer; `relight resume moved` goes on with it"
        )


async def test_a_run_whose_workflow_failed_before_it_began_shows_the_error_and_stays_failed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "botched")
    async with cluster(temporal, database, tmp_path) as stack:
        with pytest.raises(WorkflowFailureError):
            await (await stack.start("botched", {**FILE, "steps": 9})).result()
    await database.pool.execute("update runs set created_at = now() - interval '1 minute'")
    assert await reconcile(database, temporal) == ["botched"]
    assert await reconcile(database, temporal) == []
    assert (await run.value("status"), await run.value("drive_again_at")) == ("interrupted", None)
    assert "train/botched failed: run botched exists with another run file (differing: " in await run.value("error")


async def test_a_run_that_is_cancelled_while_it_waits_to_be_driven_again_is_closed(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "unwanted")
    await run.plan(1)
    assert await database.value("interrupt_run", "unwanted", 1, "lost", True, [60.0]) == "unwanted"
    assert await run.value("drive_again_at") is not None
    command = {"actor": "ada"}
    answer = await command_requests.add_request(database, "cancel-unwanted", "unwanted", names.CANCEL, command)
    assert (answer.refused, await run.value("drive_again_at")) == (None, None)
    assert await reconcile(database, temporal) == ["unwanted"]
    assert await reconcile(database, temporal) == []
    assert await run.value("status") == "cancelled"
    assert await database.pool.fetchval("select count(*) from rollouts where status <> 'cancelled'") == 0


async def test_a_run_that_temporal_refuses_to_describe_does_not_keep_others_from_being_driven_again(
    temporal: Client, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("barred", "lost"):
        await begin(database, tmp_path, name)
    await database.pool.execute("update runs set created_at = now() - interval '1 minute'")
    asked: list[str] = []

    async def some_refused(client: Client, run: RunRow) -> RunWorkflowState:
        asked.append(run.run)
        if run.run == "barred":
            raise RPCError("not allowed", RPCStatusCode.PERMISSION_DENIED, b"")
        return await run_workflow_state(client, run)

    monkeypatch.setattr(reconciler, "run_workflow_state", some_refused)
    assert await reconcile(database, temporal) == ["lost"]
    assert sorted(asked) == ["barred", "lost"]
