"""Operators' commands on live runs: done, audited, or refused with a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from relight.cli.run_control import cancel, pause, resume, stop
from relight.cli.status import status
from relight.cli.train import train
from relight.errors import ConfigError, ConflictError, NotFoundError
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.types.names import train_id
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.integration.operators.test_over_http import doing_commands
from tests.integration.views.commands import call, write_run
from tests.support.orchestration import always_right, cluster, eventually


class Gate:
    """An agent that waits until it may go on."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        self.began.set()
        await self.opened.wait()
        return await always_right(attempt)


async def test_a_paused_run_shows_it_and_continues_when_resumed(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate()
    async with cluster(temporal, database, tmp_path, agent=gate):
        await train(write_run(tmp_path), name="held", detach=True)
        await gate.began.wait()
        await pause("held", reason="lunch")
        gate.opened.set()
        capsys.readouterr()
        await status("held")
        assert "paused: lunch; to go on: `relight resume held`" in capsys.readouterr().out
        await resume("held")
        assert await call(status("held", watch=True)) == 0
    actions = [(change.action, change.refused) for change in await RunViews(database).audit("held")]
    assert actions[:2] == [("pause", None), ("resume", None)]


async def test_a_stopped_run_finishes_early(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path
) -> None:
    gate = Gate()
    async with cluster(temporal, database, tmp_path, agent=gate):
        await train(write_run(tmp_path, steps=30), name="stopped", detach=True)
        await gate.began.wait()
        await stop("stopped", after_step=1)
        gate.opened.set()
        assert await call(status("stopped", watch=True)) == 0
    run = await RunViews(database).run("stopped")
    assert (run.status, run.step) == ("finished", 1)


async def test_a_change_that_is_refused_reports_why(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path
) -> None:
    gate = Gate()
    async with cluster(temporal, database, tmp_path, agent=gate):
        await train(write_run(tmp_path), name="firm", detach=True)
        await gate.began.wait()
        with pytest.raises(ConflictError, match="run firm refused: resume: "):
            await resume("firm")
        gate.opened.set()
        await temporal.get_workflow_handle(train_id("firm")).result()


async def test_a_run_that_has_ended_refuses_commands(flags: dict[str, Any], temporal: Client) -> None:
    with pytest.raises(NotFoundError, match="no run 'unknown' is under way"):
        await pause("unknown")


async def test_a_run_that_no_workflow_drives_is_driven_again_by_resume(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path
) -> None:
    gate = Gate()
    async with cluster(temporal, database, tmp_path, agent=gate) as stack:
        await train(write_run(tmp_path), name="dropped", detach=True)
        await gate.began.wait()
        gate.opened.set()
        await eventually(lambda: _steps(database, "dropped"))
        await temporal.get_workflow_handle(train_id("dropped")).terminate()
        assert await call(status("dropped", watch=True)) == 1
        await resume("dropped")
        assert await call(status("dropped", watch=True)) == 0
    assert dict(stack.gpu.updates) == {1: 1, 2: 1, 3: 1}
    assert (await RunViews(database).run("dropped")).epoch == 2


async def _steps(database: Database, run: str) -> int:
    return (await RunViews(database).run(run)).step


async def test_pause_stop_and_cancel_are_done_while_temporal_is_down_and_reach_the_run(
    flags: dict[str, Any], temporal: Client, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, address = Gate(), flags["temporal_address"]
    async with cluster(temporal, database, tmp_path, agent=gate):
        await train(write_run(tmp_path), name="unreached", detach=True)
        await gate.began.wait()
        capsys.readouterr()
        flags["temporal_address"] = "127.0.0.1:1"
        await pause("unreached", reason="lunch")
        await stop("unreached", after_step=2)
        await cancel("unreached", reason="wrong data")
        with pytest.raises(ConflictError, match="the run is being cancelled"):
            await pause("unreached")
        lines = capsys.readouterr().out.splitlines()
        flags["temporal_address"] = address
        async with doing_commands(database, temporal):
            gate.opened.set()
            assert await call(status("unreached", watch=True)) == 1
    assert [line.split(",")[0] for line in lines] == [
        "run unreached: paused",
        "run unreached: stopping",
        "run unreached: being cancelled",
    ]
    run = await RunViews(database).run("unreached")
    assert (run.status, run.step, run.stop_after_step) == ("cancelled", 0, 2)
    done = [change.action for change in await RunViews(database).audit("unreached") if not change.refused]
    assert sorted(done) == ["cancel", "pause", "stop_after_step"]
    open_commands = "select count(*) from commands where done_at is null"
    assert await database.pool.fetchval(open_commands) == 0
    with pytest.raises(ConfigError, match="`relight resume unreached` drives it again"):
        await train(write_run(tmp_path), name="unreached", detach=True)
