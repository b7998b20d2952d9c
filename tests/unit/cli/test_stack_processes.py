"""Deaths and returns of the stack's processes are told, and caused."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.cli import stack_processes
from relight.cli.demo_crash import KILL_ORDER, Crasher, in_the_middle
from relight.cli.stack_processes import Process, changes, pids_text, read_processes, wait_for_return
from relight.cli.store_reader import StoreReader
from relight.errors import StackError, StoreError
from relight.types.views import Counts, RunView

from .example_views import a_run, a_step


def write(home: Path, **processes: tuple[str, int | None, int]) -> None:
    data = {
        name: {"state": state, "pid": pid, "restarts": n, "log": "x"} for name, (state, pid, n) in processes.items()
    }
    temporary = home / "stack.new"
    temporary.write_text(json.dumps({"processes": data}))
    temporary.replace(home / "stack.json")


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = {name: subprocess.Popen(sleeper) for name in KILL_ORDER}
    yield children
    for child in children.values():
        child.kill()
        child.wait()


def test_a_death_and_a_restart_are_a_line_each() -> None:
    alive = {"runner": Process(name="runner", state="ready", pid=7)}
    dead = {"runner": Process(name="runner", state="restarting", restarts=1)}
    back = {"runner": Process(name="runner", state="ready", pid=9, restarts=1)}
    assert changes(alive, alive) == []
    assert changes(alive, dead) == ["runner (pid 7) died and is being started again"]
    assert changes(dead, back) == ["runner is running again (pid 9)"]
    assert changes(alive, back) == ["runner (pid 7) died and is being started again", "runner is running again (pid 9)"]
    assert changes({}, alive) == []


def test_a_folder_without_a_stack_has_no_processes(tmp_path: Path) -> None:
    assert read_processes(tmp_path) == {}
    with pytest.raises(StackError, match="runner is not running"):
        stack_processes.kill(tmp_path, "runner")


def test_killing_is_by_sigkill(tmp_path: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    target = processes["runner"]
    write(tmp_path, runner=("ready", target.pid, 0))
    assert stack_processes.kill(tmp_path, "runner") == target.pid
    assert target.wait(10) == -signal.SIGKILL


async def test_waiting_for_a_restart_ends_only_with_a_ready_successor(tmp_path: Path) -> None:
    write(tmp_path, store=("ready", 1, 0))
    waiting = asyncio.create_task(wait_for_return(tmp_path, "store", 1, 30))
    write(tmp_path, store=("starting", 2, 1))
    done, _ = await asyncio.wait([waiting], timeout=3 * stack_processes.POLL_SECONDS)
    assert not done
    write(tmp_path, store=("ready", 2, 1))
    assert await waiting == 2


async def test_a_process_that_is_not_restarted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"store was not running again within 0\.1 s"):
        await wait_for_return(tmp_path, "store", 1, 0.1)


def test_pids_are_shown_with_their_names(tmp_path: Path) -> None:
    write(tmp_path, store=("ready", 1, 0), runner=("restarting", None, 1))
    assert pids_text(tmp_path, [("engine e0", 5)]) == "store 1, engine e0 5"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (a_run(), False),
        (a_run(open_step=a_step(1, rollouts=Counts(planned=4, running=2, succeeded=1))), True),
        (a_run(open_step=a_step(1, rollouts=Counts(planned=4, running=4))), False),
        (a_run(open_step=a_step(1, rollouts=Counts(planned=4, succeeded=4))), False),
        (a_run(phase="updating", open_step=a_step(1, rollouts=Counts(planned=4, running=2, succeeded=1))), False),
    ],
)
def test_the_middle_of_a_step_has_rollouts_done_and_in_progress(view: RunView, expected: bool) -> None:
    assert in_the_middle(view) is expected


class Stack(StoreReader):
    """A run that advances with every look, on parts that come back at once; its store is away now and then."""

    def __init__(self, home: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        super().__init__("http://nowhere", None)
        self.home = home
        self.processes = processes
        self.restarts = dict.fromkeys(processes, 0)
        self.killed_in: list[tuple[str, int]] = []
        self.looks = 0

    async def run(self, run: str) -> RunView:
        self.looks += 1
        step, part = 1 + self.looks // 4, self.looks % 4
        self._revive(step)
        if part == 3:
            raise StoreError
        counts = [Counts(planned=4), Counts(planned=4, running=2, succeeded=1), Counts(planned=4, succeeded=4)][part]
        return a_run(step=step - 1, open_step=a_step(step, status="planned", rollouts=counts))

    def _revive(self, step: int) -> None:
        for name, child in self.processes.items():
            if not self.restarts[name] and child.poll() is not None:
                self.restarts[name] = 1
                self.killed_in.append((name, step))
        self.write()

    def write(self) -> None:
        states: dict[str, Any] = {
            name: ("ready", child.pid + self.restarts[name], self.restarts[name])
            for name, child in self.processes.items()
        }
        write(self.home, **states)


async def test_each_process_is_killed_once_in_a_step_of_its_own_and_its_restart_is_reported(
    tmp_path: Path, processes: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, said = Stack(tmp_path, processes), list[str]()
    stack.write()

    async def comes_back(home: Path, name: str, dead_pid: int, seconds: float) -> int:
        await asyncio.to_thread(processes[name].wait, 10)
        return dead_pid + 1

    monkeypatch.setattr(stack_processes, "wait_for_return", comes_back)
    crasher = Crasher("calc-1", tmp_path, stack, said.append)
    crasher.poll_seconds = 0
    await asyncio.wait_for(crasher.kill_all(), 60)
    assert crasher.survived == list(KILL_ORDER)
    assert [name for name, _ in stack.killed_in] == list(KILL_ORDER)
    assert len({step for _, step in stack.killed_in}) == len(KILL_ORDER)
    for name in KILL_ORDER:
        assert sum(f"killed {name} (pid " in line for line in said) == 1
        assert sum(line.startswith(f"{name} is back as pid ") for line in said) == 1
