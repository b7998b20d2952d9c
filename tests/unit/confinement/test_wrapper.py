"""A wrapper command of the user's own, within which a runner's agents run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from relight.confinement.policy import policy
from relight.confinement.sandbox import wrapper_command
from relight.errors import AgentLoadError, ConfigError
from relight.runner.agent_call import AgentCall
from relight.runner.attempt_limits import AttemptLimits
from relight.runner.shared_isolation import SharedRunner
from relight.types.rollout import FailureClass
from tests.unit.confinement import ordinary_agents
from tests.unit.runner import greedy_agents

LIMITS = AttemptLimits(memory_bytes=150 * 2**20, processes=50, scratch_bytes=20 * 2**20)
AGENTS = {
    module: [f"{module.__name__}:{name}" for name in names]
    for module, names in ((ordinary_agents, ["runs_programs", "uses_processes"]), (greedy_agents, ["forks"]))
}
NAMESPACES = {
    "bwrap": ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--unshare-ipc", "--proc", "/proc", "--"],
    "unshare": [
        *("unshare", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"),
        *(() if os.getuid() == 0 else ("--map-root-user",)),
    ],
}


def _usable(words: Sequence[str]) -> bool:
    return shutil.which(words[0]) is not None and not subprocess.run([*words, "true"], check=False).returncode


def _pids(pid: int) -> list[str]:
    """A process' numbers in this PID namespace and in those below it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith("NSpid:"))


@pytest.fixture(params=sorted(NAMESPACES))
def namespaces(request: pytest.FixtureRequest) -> list[str]:
    """Commands of other projects that make namespaces."""
    words = NAMESPACES[request.param]
    if not _usable(words):
        pytest.skip(f"{words[0]} is not here, or can't make namespaces here")
    return words


async def test_agents_run_within_it_and_their_limits_hold_there(namespaces: list[str], tmp_path: Path) -> None:
    references = [reference for names in AGENTS.values() for reference in names]
    allowed = policy(home=tmp_path / "home")
    async with SharedRunner(references, policy=allowed, limits=LIMITS, wrapper=namespaces) as runner:
        pid = (await runner.start()).pid
        assert _pids(pid)[0] == str(pid) != _pids(pid)[-1]
        for agent, reward in (("runs_programs", 0.5), ("uses_processes", 1.5)):
            outcome = await runner.call(AgentCall(call_id="at-1", agent=agent, task={}, alone=True))
            assert outcome.reward == reward, (outcome.message, outcome.output)
        outcome = await runner.call(AgentCall(call_id="at-1", agent="forks", task={}, alone=True))
        assert outcome.failure_class is FailureClass.AGENT_ERROR
        assert outcome.message == "it ran more than 50 processes and threads"


async def test_it_is_the_start_of_the_fork_servers_command(tmp_path: Path) -> None:
    script, noted = tmp_path / "wrapper", tmp_path / "noted"
    script.write_text(f'#!/bin/sh\necho "$@" > {noted}\nexec "$@"\n')
    script.chmod(0o755)
    reference = AGENTS[ordinary_agents][0]
    async with SharedRunner([reference], wrapper=[str(script)]) as runner:
        assert (await runner.call(AgentCall(call_id="at-1", agent="runs_programs", task={}, alone=True))).reward == 0.5
    words = noted.read_text().split()
    assert (words[:3], words[-1]) == ([sys.executable, "-m", "relight.runner.fork_server_process"], reference)


async def test_a_wrapper_that_ends_is_told_with_its_last_words() -> None:
    with pytest.raises(AgentLoadError, match="importing exited with 3; no sandbox today"):
        await SharedRunner([AGENTS[ordinary_agents][0]], wrapper=["sh", "-c", "echo no sandbox today; exit 3"]).start()


def test_a_wrapper_is_split_as_by_a_shell() -> None:
    assert wrapper_command('sh -c "exec \\"$@\\""') == ["sh", "-c", 'exec "$@"']
    assert wrapper_command(None) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no-such-program --", "RELIGHT_WRAPPER: there is no program 'no-such-program'; install it, or give its path"),
        ("sh 'open", "No closing quotation; quote it as for a shell"),
    ],
)
def test_a_wrapper_that_can_not_be_run_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrapper_command(text)
