"""A retry after its batch has closed: the rollout is played again for people to see, and nothing that counts moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from relight.cli import output, run_control
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.maintenance.check import check_store
from relight.store.queue.outbox import dispatch, keep_dispatching, start_lost_again
from relight.store.runs.views import RunViews
from relight.temporal import search_attributes
from relight.types.views import RolloutFilter
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.integration.operators.kit import Gate, audit, fails, status_of
from tests.integration.operators.test_over_http import Http, doing_commands
from tests.rules.kit import begin
from tests.support.orchestration import Cluster, cluster, eventually, run_file, write_tasks
from tests.support.store_service import TOKEN, store_service

FAILED = "looked-s0001-g00-i0"
COUNTED = """
select r.rollout_id, r.status, r.failure_class, r.reward, r.final_attempt, r.attempts, l.step, l.reward, l.advantage
from rollouts r left join step_rollouts l using (rollout_id) where r.kind = 'train' and r.step = 1 order by 1
"""


class Player:
    """Fails a rollout and its first inspection; holds step 2 and what it is told to."""

    def __init__(self) -> None:
        self.step = Gate(lambda attempt: "-s0002-" in attempt.rollout_id)
        self.inspections = Gate(lambda attempt: attempt.rollout_id.endswith(".inspect-4"))

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        if attempt.rollout_id in (FAILED, f"{FAILED}.inspect-1"):
            return fails(attempt)
        gate = self.inspections if ".inspect-" in attempt.rollout_id else self.step
        return await gate(attempt)


@asynccontextmanager
async def playing(client: Client, database: Database, folder: Path, player: Player) -> AsyncGenerator[Cluster]:
    write_tasks(folder)
    dispatching = asyncio.create_task(keep_dispatching(database, client))
    async with cluster(client, database, folder, player) as stack:
        yield stack
        dispatching.cancel()
        await asyncio.gather(dispatching, return_exceptions=True)


@pytest.fixture
async def api(database: Database, tmp_path: Path, temporal_address: str) -> AsyncIterator[Http]:
    """REST, and a command line that finds the same services."""
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    async with store_service(store, database) as url, aiohttp.ClientSession() as session:
        flags = {"home": tmp_path, "token": TOKEN, "store_url": url, "temporal_address": temporal_address}
        output.current = output.GlobalOptions(flags)
        yield Http(session, url)
        output.current = output.GlobalOptions()


async def test_a_retry_of_a_closed_batch_is_an_inspection_that_changes_nothing(
    temporal: Client, database: Database, tmp_path: Path, api: Http, capsys: pytest.CaptureFixture[str]
) -> None:
    player = Player()
    async with playing(temporal, database, tmp_path, player) as stack, doing_commands(database, temporal):
        handle = await stack.start("looked", run_file(steps=2, data="train.jsonl"))
        await player.step.until(lambda: len(player.step.held) == 8)
        before = await database.pool.fetch(COUNTED)
        asked = await handle.execute_update("retry_rollout", {"rollout_id": FAILED, "actor": "ada"})
        _, over_http = await api.post("/runs/looked/retry_rollout", {"rollout_id": "looked-s0001-g01-i1"})
        await run_control.retry(FAILED)
        said = capsys.readouterr().out
        made = [f"{FAILED}.inspect-1", "looked-s0001-g01-i1.inspect-1", f"{FAILED}.inspect-2"]
        for rollout_id, status in zip(made, ("failed", "succeeded", "succeeded"), strict=True):
            await eventually(status_of(database, rollout_id, status))
        with pytest.raises(Exception, match="Workflow update failed") as nothing_failed:
            await handle.execute_update("retry_failed", {})
        assert await database.pool.fetch(COUNTED) == before
        player.step.open.set()
        await handle.result()
    assert await database.pool.fetch(COUNTED) == before
    assert asked["after"] == {"inspection": made[0], "workflow": f"rollout/{FAILED}/inspect-1"}
    assert over_http["result"]["after"]["inspection"] == made[1]
    assert f"inspecting {FAILED}: relight rollouts show {FAILED}.inspect-2" in said
    assert "no rollout of an open batch has failed" in str(nothing_failed.value.__cause__)
    done = [row for row in await audit(database, "looked") if row["refused"] is None]
    assert [(row["action"], row["rollout_id"]) for row in done] == [
        ("retry_rollout", FAILED),
        ("retry_rollout", "looked-s0001-g01-i1"),
        ("retry_rollout", FAILED),
    ]
    await shown_as_inspections(database, made)
    description = await temporal.get_workflow_handle(asked["after"]["workflow"]).describe()
    assert description.status is WorkflowExecutionStatus.COMPLETED
    assert await check_store(database) == []


async def test_an_inspection_is_found_by_its_task_and_names_its_original(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    """Also where Temporal had lost its workflow, which is started again."""
    run = await begin(database, tmp_path, "sought")
    await run.plan(1)
    await run.play_all(1)
    await run.advance(1)
    original = (await run.rollouts(1))[0]
    inspection = (await run.change("retry_rollout", {"rollout_id": original["rollout_id"]})).after
    for started in (dispatch(database, temporal), start_lost_again(database, temporal, after_seconds=0)):
        assert await started == 1
        handle = temporal.get_workflow_handle(inspection["workflow"])
        found = await handle.describe()
        assert found.typed_search_attributes == search_attributes.of_rollout(
            "sought", 1, f"train/{original['position']}"
        )
        assert await found.static_summary() == f"inspection of {original['rollout_id']}"
        await handle.terminate("lost")


async def test_an_inspection_runs_and_is_graded_on_the_queues_of_its_run(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "graded", grader="judge", runner_queue="ours")
    await run.plan(1)
    for row in await run.rollouts(1):
        await run.change("cancel_rollout", {"rollout_id": row["rollout_id"]})
    assert (await run.advance(1)).report is not None
    assert (await run.change("retry_rollout", {"rollout_id": "graded-s0001-g00-i0"})).accepted
    order = await database.pool.fetchval("select input from outbox")
    assert (order["queue"], order["grader_queue"]) == (f"ours.{run.file.agent}", "ours.judge")


async def shown_as_inspections(database: Database, made: list[str]) -> None:
    """The original names its inspections, an inspection names its original and has attempts of its own."""
    assert (await RunViews(database).rollout(FAILED)).inspections == [made[0], made[2]]
    again = await RunViews(database).rollout(made[2])
    assert (again.inspects, again.kind, again.step, len(again.tries)) == (FAILED, "inspect", 1, 1)
    page = await RunViews(database).rollouts("looked", RolloutFilter(kind="inspect"))
    assert [item.rollout_id for item in page.items] == [made[0], made[2], made[1]]


async def test_inspections_end_with_their_run_or_when_they_are_cancelled(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    player = Player()
    player.inspections.holds = lambda attempt: True
    kept, cancelled = "ending-s0001-g00-i2", "ending-s0001-g00-i3"
    async with playing(temporal, database, tmp_path, player) as stack:
        handle = await stack.start("ending", run_file(steps=2, data="train.jsonl"))
        await player.step.until(lambda: len(player.step.held) == 8)
        for rollout_id in (kept, cancelled):
            await handle.execute_update("retry_rollout", {"rollout_id": rollout_id})
        await player.inspections.until(lambda: len(player.inspections.held) == 2)
        await handle.execute_update("cancel_rollout", {"rollout_id": f"{cancelled}.inspect-1", "reason": "seen enough"})
        player.step.open.set()
        await handle.result()
        player.inspections.open.set()
        rows = await database.pool.fetch("select status, failure from rollouts where kind = 'inspect' order by 2")
        await temporal.get_workflow_handle(f"rollout/{cancelled}/inspect-1").result()
    assert [tuple(row) for row in rows] == [("cancelled", "its run ended"), ("cancelled", "seen enough")]
    assert await database.pool.fetchval("select count(*) from attempts where ended_at is null") == 0
    status: Any = await database.pool.fetchval("select status from runs where run = 'ending'")
    assert status == "finished"
