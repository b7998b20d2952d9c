"""Runs are asked for over HTTP: the row is the acknowledgement, and an orchestrator starts them, once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.datasets import Tasks
from relight.errors import CancelRequestedError
from relight.operators.command_requests import get_request
from relight.operators.start_requests import cancel_request, mark_of, request_start, start_key
from relight.store.database import Database
from relight.store.datasets.client import DatasetClient
from relight.store.runs.lifecycle import begin_run
from relight.types.payloads import BeginInput
from relight.types.run_file import parse_run_file
from tests.integration.operators.test_over_http import doing_commands, http
from tests.support.orchestration import cluster, eventually, run_file, write_tasks
from tests.support.store_service import TOKEN

DYING = """
import asyncio, os, signal, sys
from relight.temporal.connection import connect_temporal
from relight.store.database import Database
from relight.operators import command_loop
from relight.operators import starting
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

async def main(url, address, when):
    start = starting.start_run
    async def dies(*values, **options):
        if when == "after":
            await start(*values, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    starting.start_run = dies
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    await command_loop.keep_doing_commands(await Database.connect(url), client, "relight")

asyncio.run(main(*sys.argv[1:]))
"""


async def status_over(api: Any, run: str, *wanted: str) -> Any:
    async def ask() -> Any:
        _, found = await api.get(f"/runs/{run}")
        return found if found.get("status") in wanted else None

    return await eventually(ask)


async def test_a_run_is_requested_over_http_with_a_data_set_of_the_store_and_trains(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    file = run_file(steps=1, data="store:sums", evaluation={"at_start": False, "at_end": False})
    async with cluster(temporal, database, tmp_path), http(database) as api:
        unknown = await api.post("/runs", {"name": "asked", "file": file})
        async with DatasetClient(api.url.removesuffix("/v1/relight"), TOKEN) as data:
            lines = b"".join(b'{"question": "%d+1?"}\n' % number for number in range(10))
            put = await data.put("sums", [(1, lines)])
            status, wanted = await api.post("/runs", {"name": "asked", "file": file, "actor": "ada"}, wait=0)
            again = await api.post("/runs", {"name": "asked", "file": file}, wait=0)
            _, used = await api.get("/datasets/sums")
            async with doing_commands(database, temporal):
                done = await status_over(api, "asked", "finished")
        late = await api.post("/runs", {"name": "asked", "file": file})
    assert (unknown[0], "data.train: data set store:sums" in unknown[1]["detail"]) == (422, True)
    assert (status, wanted["status"], wanted["waiting_for"]) == (202, "requested", "an orchestrator that starts it")
    assert (wanted["agent"], wanted["total_steps"], again[0]) == ("echo", 1, 202)
    assert used["runs"] == ["asked"]
    assert (done["train_dataset"], done["step"]) == (put.dataset_id, 1)
    assert (late[0], late[1]["status"]) == (200, "finished")
    assert await database.pool.fetchval("select count(*) from runs") == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_orchestrator_that_dies_around_the_start_leaves_a_run_that_is_started_once(
    temporal: Client, temporal_address: str, database: Database, database_url: str, tmp_path: Path, when: str
) -> None:
    """Killed between the row and the start, and between the start and what the row says of it."""
    write_tasks(tmp_path)
    run = f"killed-{when}"
    file = run_file(steps=1, data="train.jsonl", evaluation={"at_start": False, "at_end": False})
    async with http(database) as api:
        status, _ = await api.post("/runs", {"name": run, "file": file}, wait=0)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DYING, database_url, temporal_address, when, env=dict(os.environ), cwd=Path.cwd()
        )
        assert await asyncio.wait_for(child.wait(), 120) == -signal.SIGKILL
        _, between = await api.get(f"/runs/{run}")
        await database.pool.execute("update commands set claimed_until = now()")  # a minute later
        async with cluster(temporal, database, tmp_path), doing_commands(database, temporal):
            done = await status_over(api, run, "finished")
            await eventually(lambda: _all_done(database))
    assert (status, between["status"], done["step"]) == (202, "requested", 1)
    assert len([one async for one in _first_executions(temporal, run)]) == 1
    assert await database.pool.fetchval("select epoch from runs") == 1


async def _first_executions(temporal: Client, run: str) -> AsyncGenerator[Any]:
    """Those that did not continue another one."""
    async for one in temporal.list_workflows(f"WorkflowId = 'train/{run}'"):
        description = await temporal.get_workflow_handle(one.id, run_id=one.run_id).describe()
        first = description.raw_description.workflow_execution_info.first_run_id
        if first in ("", one.run_id):
            yield one


async def _all_done(database: Database) -> bool:
    return await database.pool.fetchval("select count(*) from commands where done_at is null") == 0


async def test_a_run_that_cannot_start_shows_why_until_it_is_requested_again(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    file = run_file(steps=1, data="absent.jsonl", evaluation={"at_start": False, "at_end": False})
    async with cluster(temporal, database, tmp_path), http(database) as api, doing_commands(database, temporal):
        refused = await api.post("/runs", {"name": "hopeless", "file": file}, wait=30)
        shown = await api.get("/runs/hopeless")
        (tmp_path / "absent.jsonl").write_text('{"question": "1+1?"}\n' * 10)
        started = await api.post("/runs", {"name": "hopeless", "file": file}, wait=30)
        await status_over(api, "hopeless", "finished")
    assert (refused[0], "there is no file" in refused[1]["detail"]) == (409, True)
    assert (shown[0], shown[1]["status"]) == (200, "refused")
    assert "absent.jsonl" in shown[1]["error"]
    assert (started[0], started[1]["error"]) == (200, None)


async def test_a_name_is_one_run_and_bad_requests_name_the_field(database: Database) -> None:
    file = run_file(steps=1, data="train.jsonl", evaluation={})
    async with http(database) as api:
        first = await api.post("/runs", {"name": "taken", "file": file}, wait=0)
        many = await asyncio.gather(*[api.post("/runs", {"name": "taken", "file": file}, wait=0) for _ in range(8)])
        other = await api.post("/runs", {"name": "taken", "file": {**file, "steps": 7}}, wait=0)
        bad = [
            await api.post("/runs", body, wait=0)
            for body in (
                {"name": "Upper", "file": file},
                {"name": "a", "file": {**file, "group_sise": 4}},
                {"name": "a", "file": {key: value for key, value in file.items() if key != "agent"}},
                {"name": "a", "file": {**file, "algorithm": {"learning_rate": -1}}},
                {"name": "a"},
                {"name": "a", "file": file, "speed": 9},
            )
        ]
        missing = await api.get("/runs/unknown")
    assert [first[0], *[answer[0] for answer in many]] == [202] * 9
    assert await database.pool.fetchval("select count(*) from commands") == 1
    assert (other[0], "differing: steps" in other[1]["detail"], missing[0]) == (409, True, 404)
    assert [answer[0] for answer in bad] == [422] * 6
    named = ["name: 'Upper'", "group_sise", "agent: missing", "algorithm.learning_rate", "body.file", "body.speed"]
    for answer, text in zip(bad, named, strict=True):
        assert text in answer[1]["detail"], answer


async def test_a_run_that_is_cancelled_before_an_orchestrator_starts_it_never_begins(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    file = run_file(steps=1, data="train.jsonl", evaluation={"at_start": False, "at_end": False})
    async with http(database) as api:
        await api.post("/runs", {"name": "withdrawn", "file": file}, wait=0)
        status, _ = await api.post("/runs/withdrawn/cancel", {"actor": "ada"}, key="once")
        again, _ = await api.post("/runs/withdrawn/cancel", {"actor": "ada"}, key="once")
        async with doing_commands(database, temporal):
            await eventually(lambda: _all_done(database))
        _, run = await api.get("/runs/withdrawn")
        _, audit = await api.get("/runs/withdrawn/audit")
        unknown, _ = await api.post("/runs/never/cancel", {})
    assert (status, again, unknown) == (200, 200, 404)
    assert (run["status"], run["error"]) == ("refused", "cancelled by ada")
    assert [(row["actor"], row["action"], row["after"]["status"]) for row in audit["items"]] == [
        ("ada", "cancel", "refused")
    ]
    assert await database.pool.fetchval("select count(*) from runs") == 0
    assert [one async for one in _first_executions(temporal, "withdrawn")] == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_that_is_cancelled_after_its_orchestrator_died_around_the_start_never_begins(
    temporal: Client, temporal_address: str, database: Database, database_url: str, tmp_path: Path, when: str
) -> None:
    """Its workflow may be there already: it ends where it would begin the run, and the name can be had anew."""
    write_tasks(tmp_path)
    run = f"regretted-{when}"
    file = run_file(steps=1, data="train.jsonl", evaluation={"at_start": False, "at_end": False})
    async with http(database) as api:
        await api.post("/runs", {"name": run, "file": file}, wait=0)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DYING, database_url, temporal_address, when, env=dict(os.environ), cwd=Path.cwd()
        )
        assert await asyncio.wait_for(child.wait(), 120) == -signal.SIGKILL
        status, _ = await api.post(f"/runs/{run}/cancel", {"actor": "ada"})
        assert len([one async for one in _first_executions(temporal, run)]) == (when == "after")
        async with cluster(temporal, database, tmp_path), doing_commands(database, temporal):
            if when == "after":
                with pytest.raises(WorkflowFailureError) as ended:
                    await temporal.get_workflow_handle(f"train/{run}").result()
                assert "cancelled by ada" in str(ended.value.cause.__cause__ or ended.value.cause)
            _, shown = await api.get(f"/runs/{run}")
            assert await database.pool.fetchval("select count(*) from runs") == 0
            await api.post("/runs", {"name": run, "file": file}, wait=0)
            done = await status_over(api, run, "finished")
    assert (status, shown["status"], shown["error"], done["step"]) == (200, "refused", "cancelled by ada", 1)


async def test_a_cancel_and_the_beginning_of_a_run_exclude_each_other(database: Database) -> None:
    """Whichever has the request first: the run never begins, or it has begun and is cancelled as any other."""
    file = parse_run_file(run_file(steps=1, data="train.jsonl", evaluation={}))
    tasks = Tasks([{"question": "1+1?"}], "0" * 64, "train.jsonl")
    async with http(database) as api:
        for run, first in (("cancelled-first", "cancel"), ("begun-first", "begin")):
            await request_start(database, run, file, "ada")
            asked = await get_request(database, start_key(run))
            begin = BeginInput(run=run, driver="d", file=file, asked=mark_of(asked))
            table = "audit" if first == "cancel" else "resources"  # each writes there when it has the request
            async with database.transaction() as other:
                await other.connection.execute(f"lock table {table} in exclusive mode")
                calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                    "cancel": lambda run=run: api.post(f"/runs/{run}/cancel", {"actor": "ada"}, wait=0),
                    "begin": lambda begin=begin: begin_run(database, begin, tasks, None),
                }
                ahead = asyncio.create_task(calls.pop(first)())
                await eventually(lambda: _waiting(database, 1))
                behind = asyncio.create_task(next(iter(calls.values()))())
                await eventually(lambda: _waiting(database, 2))
            if first == "cancel":
                assert (await ahead)[0] == 200
                with pytest.raises(CancelRequestedError, match="does not begin: cancelled by ada"):
                    await behind
            else:
                assert (await ahead).epoch == 1
                assert (await behind)[0] == 200
    row = await database.pool.fetchrow("select run, cancel_requested from runs")
    assert (row["run"], row["cancel_requested"] is not None) == ("begun-first", True)
    written = await database.pool.fetch("select run, action from audit order by id")
    assert [tuple(row) for row in written] == [("cancelled-first", "cancel"), ("begun-first", "cancel")]


async def test_a_workflow_of_a_withdrawn_request_does_not_begin_a_later_request(
    database: Database,
) -> None:
    file = parse_run_file(run_file(steps=1, data="train.jsonl", evaluation={}))
    tasks = Tasks([{"question": "1+1?"}], "0" * 64, "train.jsonl")
    marks: list[str] = []
    for _ in range(2):
        await request_start(database, "again", file, "ada")
        marks.append(mark_of(await get_request(database, start_key("again"))))
        if len(marks) == 1:
            await cancel_request(database, "k", "again", {"actor": "ada"})
    begin = BeginInput(run="again", driver="d", file=file, asked=marks[0])
    with pytest.raises(CancelRequestedError, match="asked for anew"):
        await begin_run(database, begin, tasks, None)
    assert (await begin_run(database, begin.model_copy(update={"asked": marks[1]}), tasks, None)).epoch == 1


async def _waiting(database: Database, number: int) -> bool:
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    return await database.pool.fetchval(waiting) >= number
