"""A process ends with the one that started it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from relight.processes import parent_death_tie
from relight.stack.pidfd import open_process

PARENT = """
import subprocess, sys, time
from relight.processes.child import tied_to_parent
import signal
child = subprocess.Popen(tied_to_parent(["sleep", "60"], signal.SIGKILL, None), start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


async def test_a_child_with_a_parent_death_tie_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout
    child = int(await parent.stdout.readline())
    with open_process(child) as tied:
        parent.kill()
        await parent.wait()
        assert await asyncio.to_thread(tied.ends, 10)


def test_a_parent_death_tie_without_a_parent_does_not_run_the_command() -> None:
    command = [sys.executable, "-I", "-S", str(parent_death_tie.__file__), "1", "9", "-", "echo", "ran"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the parent process is gone" in done.stderr
