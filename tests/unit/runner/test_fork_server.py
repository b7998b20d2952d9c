"""The fork server: what it refuses to load, what it survives, what goes with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from relight.errors import AgentLoadError
from relight.processes import linux
from relight.runner.agent_environment import agent_environment
from relight.runner.process_isolation import IsolatedRunner
from tests.unit.runner.support import FILE, MISBEHAVING, call

RUNNER = """
import asyncio, sys
from relight.runner.process_isolation import IsolatedRunner
from relight.runner.agent_call import AgentCall

async def main():
    runner = IsolatedRunner([sys.argv[1] + ":daemonizes"])
    print((await runner.start()).pid, flush=True)
    call = AgentCall(call_id="at-1", agent="daemonizes", task={"pids": sys.argv[2], "hang": 1})
    await runner.call(call, on_span=lambda span: print("ready", flush=True))

asyncio.run(main())
"""


async def _refused(*references: str) -> str:
    runner = IsolatedRunner(references)
    with pytest.raises(AgentLoadError) as caught:
        await runner.start()
    await runner.close()
    return caught.value.message


def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(linux.alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _module(directory: Path, text: str) -> str:
    path = directory / "its_agent.py"
    path.write_text(text)
    return f"{path}:agent"


async def test_a_missing_attribute_is_named_with_a_similar_one() -> None:
    message = await _refused(f"{FILE}:wel")
    assert "has no attribute 'wel'; did you mean 'well'" in message


async def test_an_import_that_raises_is_reported_in_one_line(tmp_path: Path) -> None:
    message = await _refused(_module(tmp_path, "import os\n\nos.environ['NO_SUCH_KEY']\n"))
    assert message.startswith(f"agent '{tmp_path}/its_agent.py:agent': importing it raised KeyError: 'NO_SUCH_KEY'")
    assert "its_agent.py, line 3" in message
    assert "\n" not in message


async def test_an_import_that_exits_is_reported(tmp_path: Path) -> None:
    assert "importing it raised SystemExit: 3" in await _refused(_module(tmp_path, "import sys; sys.exit(3)"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import ctypes; ctypes.string_at(0)", "importing was ended by SIGSEGV"),
        ("import os; print('last words', flush=True); os._exit(4)", "importing exited with 4; last words"),
    ],
)
async def test_an_import_that_kills_the_process_is_reported(tmp_path: Path, text: str, says: str) -> None:
    assert says in await _refused(_module(tmp_path, text))


@pytest.mark.parametrize("message", [b"[0]", b"\xff", b'[0,"LoadReport",{"agents":1}]x'])
async def test_a_fork_server_whose_module_writes_to_the_runner_is_given_up(tmp_path: Path, message: bytes) -> None:
    text = f"import os, socket, sys; socket.socket(fileno=os.dup(int(sys.argv[1]))).send({message!r})\n"
    text += "def agent(task): return 1\n"
    assert "importing exited with" in await _refused(_module(tmp_path, text))


async def test_a_module_that_starts_a_thread_is_refused_by_name(tmp_path: Path) -> None:
    text = """
import threading, time

threading.Thread(target=time.sleep, args=(600,), name="poller", daemon=True).start()

def agent(task): ...
"""
    message = await _refused(_module(tmp_path, text))
    assert f"starts a thread ('poller', at {tmp_path}/its_agent.py, line 4)" in message
    assert "inside of the agent function" in message


async def test_a_thread_that_ends_with_the_import_is_accepted(tmp_path: Path) -> None:
    text = """
import threading

worker = threading.Thread(target=print)
worker.start()

def agent(task): return 1
"""
    async with IsolatedRunner([_module(tmp_path, text)]) as runner:
        assert (await runner.call(call("agent"))).reward == 1.0


async def test_a_file_that_no_longer_imports_fails_the_next_fork_server(tmp_path: Path) -> None:
    reference = _module(tmp_path, "def agent(task): return 1\n")
    async with IsolatedRunner([reference]) as runner:
        pid = (await runner.start()).pid
        _module(tmp_path, "def agent(tusk): return 1\n")
        os.kill(pid, signal.SIGKILL)
        await runner._supervisor._server._process.wait()  # pyright: ignore
        with pytest.raises(AgentLoadError, match="must be called 'task'"):
            await runner.call(call("agent"))
        _module(tmp_path, "def agent(task): return 2\n")
        assert (await runner.call(call("agent"))).reward == 2.0


async def test_children_that_a_module_starts_at_import_are_not_killed(tmp_path: Path) -> None:
    text = """
import subprocess

helper = subprocess.Popen(["/bin/sleep", "600"])

def agent(task): return helper.pid
"""
    async with IsolatedRunner([_module(tmp_path, text)]) as runner:
        pid = int((await runner.call(call("agent"))).reward or 0)
        await runner.call(call("agent"))
        assert linux.alive(pid)
    assert not linux.alive(pid)


async def test_fork_server_and_attempts_end_when_their_runner_is_killed(tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUNNER, str(FILE), str(noted)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    server = int(await process.stdout.readline())
    assert await process.stdout.readline() == b"ready\n"
    pids = [server, *map(int, noted.read_text().split())]
    assert all(linux.alive(pid) for pid in pids)
    process.kill()
    await process.wait()
    await asyncio.to_thread(_until_gone, pids)


def test_the_environment_of_agents_is_an_allow_list() -> None:
    own = {
        "PATH": "/bin",
        "PYTHONPATH": "src",
        "LC_ALL": "C",
        "AWS_SECRET_ACCESS_KEY": "s",
        "OPENAI_API_KEY": "s",
        "RELIGHT_TOKEN": "s",
        "OMP_NUM_THREADS": "4",
        "SEARCH": "x",
    }
    made = agent_environment(own, ["SEARCH", "ABSENT", "OMP_NUM_THREADS"])
    threads = {name: value for name, value in made.items() if name.endswith("_THREADS")}
    rest = {name: value for name, value in made.items() if name not in threads}
    assert rest == {"PATH": "/bin", "PYTHONPATH": "src", "LC_ALL": "C", "SEARCH": "x"}
    assert threads.pop("OMP_NUM_THREADS") == "4"
    assert set(threads.values()) == {"1"}


async def test_a_runner_without_torch_stays_small(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from relight.runner.process_isolation import IsolatedRunner
from relight.runner.shared_isolation import SharedRunner

def rss(pid):
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) // 1024

async def main():
    async with IsolatedRunner([sys.argv[1]]) as runner:
        print(rss("self"), rss((await runner.start()).pid))

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, MISBEHAVING[0]), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    own, server = map(int, out.split())
    assert own < 70
    assert server < 60
