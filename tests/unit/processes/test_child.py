"""Children are killed with all that they started, whichever process dies first."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.processes.child import ChildProcess, describe_exit, log_tail, reason_in_log
from relight.processes.process_group_reaper import members_of_session

# Starts a grandchild that ignores SIGTERM in a process group of its own, says so, and sleeps.
STUBBORN = """
import os, signal, subprocess, sys, time
if sys.argv[1:] == ["grandchild"]:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
else:
    subprocess.Popen([sys.executable, __file__, "grandchild"])
time.sleep(600)
"""

PARENT = """
import asyncio, os, sys
from pathlib import Path
from relight.processes.child import ChildProcess
async def main():
    child = await ChildProcess.start(sys.argv[1:3], environment=os.environ, log=Path(sys.argv[3]), reaped=True)
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def until_log_says(log: Path, text: str) -> None:
    await until(lambda: text in log_tail(log))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    return path


async def start(script: Path, log: Path) -> ChildProcess:
    child = await ChildProcess.start([sys.executable, str(script)], environment=os.environ, log=log, reaped=True)
    await until_log_says(log, "up")
    return child


async def test_a_child_is_stopped_with_its_children_that_ignore_sigterm(script: Path, tmp_path: Path) -> None:
    child = await start(script, tmp_path / "log")
    assert child.alive
    assert len(child.pids) == 3
    await child.stop(grace_seconds=10)
    assert not child.alive
    assert child.pids == []


async def test_processes_of_a_killed_child_are_killed_too(script: Path, tmp_path: Path) -> None:
    child = await start(script, tmp_path / "log")
    os.kill(sorted(child.pids)[1], signal.SIGKILL)
    assert await child.wait() == 128 + signal.SIGKILL
    assert child.pids == []


async def test_when_the_reaper_is_killed_its_child_dies_and_the_rest_can_be_killed(
    script: Path, tmp_path: Path
) -> None:
    child = await start(script, tmp_path / "log")
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    await child.kill()
    assert child.pids == []


async def test_children_die_with_the_process_that_started_them(script: Path, tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, sys.executable, str(script), str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    session = int(await parent.stdout.readline())
    await until_log_says(tmp_path / "log", "up")
    parent.kill()
    await parent.wait()
    await until(lambda: not members_of_session(session))


async def test_the_exit_code_of_a_child_is_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('bye'); sys.exit(7)"]
    child = await ChildProcess.start(command, environment=os.environ, log=tmp_path / "log", reaped=True)
    assert await child.wait() == 7
    assert log_tail(tmp_path / "log") == "bye"


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit status 0"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_exit_statuses_are_described(status: int, words: str) -> None:
    assert describe_exit(status) == words


def test_the_reported_last_line_is_the_error_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("starting\nerror: no Postgres is set\nbye\n\n")
    assert reason_in_log(log) == "no Postgres is set"
    log.write_text("starting\nTraceback\nKeyError: 'x'\n")
    assert reason_in_log(log) == "KeyError: 'x'"
