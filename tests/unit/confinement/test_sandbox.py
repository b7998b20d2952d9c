"""Namespaces: where they can be had, what ends with them, and what is said where they can't."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from relight.confinement import sandbox
from relight.confinement.policy import ConfinementPolicy, policy
from relight.errors import ConfigError
from relight.runner.agent_call import AgentCall
from relight.runner.process_isolation import IsolatedRunner
from relight.types.rollout import FailureClass

AGENT = """
import os, signal, subprocess
from relight.emitter import emit_message

def kills(task):
    os.kill(os.getppid(), signal.SIGKILL)
    return 1.0

def leaves(task):
    subprocess.run(["sh", "-c", "setsid sleep 600 & setsid sh -c 'sleep 600 & sleep 600' &"])
    emit_message("ready")
    signal.pause()
"""


@pytest.fixture
def agents(tmp_path: Path) -> str:
    """A file with agents; the test is skipped where there are no namespaces."""
    if lacking := asyncio.run(sandbox.namespace_error(sys.executable)):
        pytest.skip(lacking)
    path = tmp_path / "agents.py"
    path.write_text(AGENT)
    return str(path)


def _namespace(pid: int | str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


async def test_no_agent_can_kill_its_fork_server_even_without_layer_1(agents: str) -> None:
    async with IsolatedRunner([f"{agents}:kills"], namespaces=True) as runner:
        assert (await runner.call(AgentCall(call_id="at-1", agent="kills", task={}))).reward == 1.0


async def test_all_that_was_started_ends_with_the_namespace(agents: str, tmp_path: Path) -> None:
    ready = asyncio.Event()
    async with IsolatedRunner([f"{agents}:leaves"], policy=policy(home=tmp_path / "h"), namespaces=True) as runner:
        fork_server = (await runner.start()).pid
        namespace = _namespace(fork_server)
        call = AgentCall(call_id="at-1", agent="leaves", task={})
        running = asyncio.create_task(runner.call(call, on_span=lambda _: ready.set()))
        await ready.wait()
        assert len([pid for pid in os.listdir("/proc") if _namespace(pid) == namespace]) > 3
        os.kill(fork_server, signal.SIGKILL)
        assert (await running).failure_class is FailureClass.INFRASTRUCTURE
    assert namespace
    assert not [pid for pid in os.listdir("/proc") if _namespace(pid) == namespace]


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's right to user namespaces can't be taken away here")
async def test_what_is_missing_is_named_with_the_mend_and_fails_only_if_it_was_asked_for() -> None:
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    lacking = await sandbox.why_unavailable(None, sys.executable, without)
    assert lacking.startswith("unshare: Operation not permitted; allow user namespaces")
    assert sandbox.describe(lacking).startswith("agents have no namespaces of their own: unshare: Operation not")
    with pytest.raises(
        ConfigError, match=r"--isolation sandbox can't be had on this machine: unshare: .*CAP_SYS_ADMIN"
    ):
        await sandbox.why_unavailable("sandbox", sys.executable, without)


async def test_processes_alone_are_a_choice() -> None:
    assert await sandbox.why_unavailable("process", sys.executable, []) == "--isolation process"


def test_what_holds_something_that_agents_use_is_not_covered(tmp_path: Path) -> None:
    (tmp_path / "home" / "cache").mkdir(parents=True)
    (tmp_path / "docker.sock").touch()
    home, cache, docker = (str(tmp_path / name) for name in ("home", "home/cache", "docker.sock"))
    hidden = ConfinementPolicy(hidden=[home, str(tmp_path / "none")], user_home="/nowhere")
    assert sandbox.hidden_paths(hidden, "/tmp/scratch", [docker]) == [home, docker]
    assert sandbox.hidden_paths(hidden, f"{home}/scratch", []) == []
    assert (
        sandbox.hidden_paths(
            ConfinementPolicy(hidden=[home], user_home="/nowhere", writable=[cache]), "/tmp/scratch", []
        )
        == []
    )
