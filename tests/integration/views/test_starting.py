"""`relight train` and `relight status` on a real Temporal server, store and workflows; agents and GPU are scripted."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from relight.activities.readiness import count_pollers
from relight.cli import output
from relight.cli.demo import choose_run
from relight.cli.plot import plot
from relight.cli.rollouts import rollouts
from relight.cli.stack_overview import read_overview
from relight.cli.start_run import launch
from relight.cli.status import status
from relight.cli.store_reader import StoreReader
from relight.cli.train import DETACHED_EXIT_CODE, train
from relight.errors import ConfigError, StoreError, TemporalError
from relight.store.database import Database
from relight.types.names import GPU_QUEUE, ORCHESTRATOR_QUEUE, runner_queue, train_id
from relight.types.rollout import FailureClass
from relight.types.run_file import parse_run_file
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.integration.views.commands import call, write_run
from tests.support.orchestration import always_right, cluster, eventually


async def test_train_shows_every_step_and_both_evaluations_and_succeeds(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(temporal, database, tmp_path):
        assert await call(train(write_run(tmp_path), name="shown")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run shown started"
    assert [line.split()[:2] for line in lines if line.startswith("step")] == [["step", f"{n}/3"] for n in (1, 2, 3)]
    assert "8 rollouts, 0 failed, 0 retried" in "".join(lines)
    assert sum(line.startswith("held-out score of version") for line in lines) == 2
    *_, ended, model, curve = lines  # the scripted GPU worker leaves no files to serve
    assert ended == "the run finished"
    assert (model.split()[0], model.rpartition(" (")[2]) == ("model", "version 3)")
    assert curve.startswith("reward curve  ")
    assert "relight plot shown --home" in curve
    drawn = tmp_path / "curves" / "shown.svg"
    await plot("shown", drawn)
    assert capsys.readouterr().out == f"reward curve  {drawn}\n"
    assert drawn.read_text().startswith("<?xml")


async def test_failures_are_shown_by_class_and_can_be_listed(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def breaks(attempt: OpenedAttempt) -> FinishRequest:
        answer = await always_right(attempt)
        if not attempt.rollout_id.endswith("s0001-g00-i0"):
            return answer
        return answer.model_copy(
            update={"reward": None, "failure_class": FailureClass.AGENT_ERROR, "message": "KeyError: 3"}
        )

    async with cluster(temporal, database, tmp_path, agent=breaks):
        assert await call(train(write_run(tmp_path, steps=1), name="broken")) == 0
    assert "8 rollouts, 1 failed (agent_error 1), 0 retried" in capsys.readouterr().out
    await rollouts(["broken"], failed=True)
    shown = capsys.readouterr().out
    assert "broken-s0001-g00-i0" in shown
    assert "KeyError: 3" in shown
    await rollouts(["show", "broken-s0001-g00-i0"])
    assert "why: KeyError: 3" in capsys.readouterr().out


async def test_the_default_name_is_the_folder_and_the_next_number(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "calculator"
    folder.mkdir()
    async with cluster(temporal, database, tmp_path):
        for number in (1, 2):
            assert await call(train(write_run(folder, steps=0), detach=True)) == 0
            assert f"run calculator-{number} started" in capsys.readouterr().out
            await temporal.get_workflow_handle(train_id(f"calculator-{number}")).result()


async def test_a_detached_run_is_found_again_with_status_watch(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path)
    assert await call(train(path, name="left", detach=True)) == 0
    watching = asyncio.create_task(call(train(path, name="left")))  # the same file again: attaches
    await eventually(lambda: _printed(capsys, "run left is under way"))
    watching.cancel()
    assert await watching == DETACHED_EXIT_CODE
    assert "relight status --watch left" in capsys.readouterr().out
    async with cluster(temporal, database, tmp_path):
        assert await call(status("left", watch=True)) == 0
    assert "the run finished\nmodel  " in capsys.readouterr().out
    await status("left")
    assert "status    finished" in capsys.readouterr().out


async def test_a_detached_run_shows_which_runner_it_waits_for(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, prefix = write_run(tmp_path, steps=0, runner_queue="late-runners"), "late-runners"
    await train(path, name="unserved", detach=True)
    shown = capsys.readouterr().out
    assert "  waiting: no runner serves agent 'echo' (task queue late-runners.echo)" in shown
    assert "start one with `relight runner package.module:echo`" in shown
    async with cluster(temporal, database, tmp_path, prefix=prefix):
        for queue in (runner_queue(prefix, "echo"), GPU_QUEUE):
            await eventually(partial(count_pollers, temporal, queue))
        await train(path, name="served", detach=True)
        assert "waiting:" not in capsys.readouterr().out
        for run in ("unserved", "served"):
            await temporal.get_workflow_handle(train_id(run)).result()


async def _printed(capsys: pytest.CaptureFixture[str], text: str) -> bool:
    return text in capsys.readouterr().out


async def test_a_name_with_another_file_is_refused_with_the_keys_whether_it_runs_or_has_run(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path
) -> None:
    path = write_run(tmp_path, steps=0)
    await train(path, name="taken", detach=True)
    with pytest.raises(ConfigError, match=r"differing: algorithm\.learning_rate, steps"):
        await train(path, name="taken", detach=True, set_=["steps=9", "algorithm.learning_rate=0.5"])
    async with cluster(temporal, database, tmp_path):
        await temporal.get_workflow_handle(train_id("taken")).result()
    with pytest.raises(ConfigError, match="run taken is finished"):
        await train(path, name="taken", detach=True)


async def test_a_run_that_fails_reports_why_and_exits_with_1(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, data="train.jsonl")
    (tmp_path / "train.jsonl").unlink()
    async with cluster(temporal, database, tmp_path):
        assert await call(train(path, name="failing", check=False)) == 1
    assert "the run failed: data set train.jsonl: there is no file" in capsys.readouterr().out


@pytest.mark.parametrize(("away", "error"), [("temporal_address", TemporalError), ("store_url", StoreError)])
async def test_with_a_service_out_of_reach_nothing_is_started(
    flags: dict[str, Any], temporal: Client, tmp_path: Path, away: str, error: type[Exception]
) -> None:
    flags[away] = {"temporal_address": "127.0.0.1:1", "store_url": "http://127.0.0.1:1"}[away]
    with pytest.raises(error, match="relight up"):
        await train(write_run(tmp_path), name="nowhere", detach=True)
    with pytest.raises(RPCError, match="not found"):
        await temporal.get_workflow_handle(train_id("nowhere")).describe()


async def test_a_file_that_cannot_work_starts_nothing(flags: dict[str, Any], temporal: Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learning_rat: unknown key"):
        await train(write_run(tmp_path, learning_rat=1), name="never", detach=True)
    with pytest.raises(RPCError, match="not found"):
        await temporal.get_workflow_handle(train_id("never")).describe()


async def test_a_run_that_no_orchestrator_starts_is_reported(
    flags: dict[str, Any], temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags["orchestrator_queue"] = "unknown-here"
    said = asyncio.Event()
    monkeypatch.setattr(
        output, "say", lambda text: said.set() if "start one with `relight orchestrator`" in text else None
    )
    watching = asyncio.create_task(call(train(write_run(tmp_path), name="lonely")))
    async with asyncio.timeout(60):
        await said.wait()
    watching.cancel()
    await watching
    await temporal.get_workflow_handle(train_id("lonely")).terminate()


async def test_the_web_ui_finds_a_run_by_its_search_attributes(
    flags: dict[str, Any], temporal: Client, tmp_path: Path
) -> None:
    await train(write_run(tmp_path), name="findable", detach=True)
    handle = temporal.get_workflow_handle(train_id("findable"))
    description = await handle.describe()
    assert description.status == WorkflowExecutionStatus.RUNNING
    found = {pair.key.name: pair.value for pair in description.typed_search_attributes}
    assert (found["RelightRun"], found["RelightAlgorithm"]) == ("findable", "grpo")
    assert await description.static_summary() == "train echo with grpo"
    await handle.terminate()


async def test_status_shows_pollers_and_services_that_are_down(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path
) -> None:
    async with cluster(temporal, database, tmp_path), StoreReader.from_settings(output.settings()) as reader:
        await train(write_run(tmp_path, steps=0), name="seen", detach=True)
        await temporal.get_workflow_handle(train_id("seen")).result()
        found = await read_overview(output.settings(), reader)
        assert [service.error for service in found.services] == [None, None]
        assert {queue.queue: bool(queue.pollers) for queue in found.queues}[ORCHESTRATOR_QUEUE]
        assert [run.run for run in found.runs] == ["seen"]
    flags["temporal_address"] = "127.0.0.1:1"
    async with StoreReader.from_settings(output.settings()) as reader:
        found = await read_overview(output.settings(), reader)
    assert not found.reachable
    assert [run.run for run in found.runs] == ["seen"]


async def test_the_demo_resumes_an_unfinished_run_and_names_a_new_one_after_a_finished_one(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "demo").mkdir()
    path = write_run(tmp_path / "demo", steps=0)
    file = parse_run_file(json.loads(path.read_text()))
    async with StoreReader.from_settings(output.settings()) as reader, cluster(temporal, database, tmp_path):
        assert await choose_run(reader, temporal, file, path) == ("demo-1", False)
        await launch(temporal, reader, ORCHESTRATOR_QUEUE, "demo-1", file)
        await temporal.get_workflow_handle(train_id("demo-1")).result()
        assert await choose_run(reader, temporal, file, path) == ("demo-2", False)
        await database.pool.execute("update runs set status = 'interrupted' where run = 'demo-1'")
        assert await choose_run(reader, temporal, file, path) == ("demo-1", False)
        other = file.model_copy(update={"seed": 7})
        assert await choose_run(reader, temporal, other, path) == ("demo-2", False)
