"""An ordinary agent works by default, and is told which option it needs where it does not."""

from __future__ import annotations

import http.server
import importlib.util
import inspect
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from relight.confinement import landlock
from relight.confinement.policy import policy
from relight.runner.agent_call import AgentCall
from relight.runner.process_isolation import IsolatedRunner
from relight.types.rollout import FailureClass
from tests.unit.confinement import ordinary_agents

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
AGENTS = [
    f"{ordinary_agents.__name__}:{name}"
    for name, value in vars(ordinary_agents).items()
    if inspect.isfunction(value) and value.__module__ == ordinary_agents.__name__ and not name.startswith("_")
]


class Tool(http.server.BaseHTTPRequestHandler):
    """A tool that answers a number."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"0.25")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _served() -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def tool() -> Generator[int]:
    """The port of a tool that agents may call, as port 443 of another host would be."""
    with _served() as server:
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def elsewhere() -> Generator[int]:
    """The port of a service that agents may not call."""
    with _served() as server:
        yield server.server_port
        server.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(
    tmp_path_factory: pytest.TempPathFactory, tool: int, namespaces: bool
) -> AsyncGenerator[IsolatedRunner]:
    """A runner in a project of its own, with a user's home and a hub's cache in that."""
    project, user = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("user")
    hub = user / ".cache" / "huggingface"
    hub.mkdir(parents=True)
    (hub / "weight").write_text("0.5")
    (project / "data").mkdir()
    (project / "data" / "reward").write_text("0.5")
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(user))
        patch.setenv("PYTHONPATH", str(before))
        os.chdir(project)
        try:
            allowed = policy(home=project / ".relight", allow_path=[str(hub)], ports=[tool])
            async with IsolatedRunner(AGENTS, policy=allowed, namespaces=namespaces) as started:
                yield started
        finally:
            os.chdir(before)


@pytest.mark.parametrize(
    ("agent", "reward"),
    [
        ("calls_a_tool", 0.25),
        ("runs_programs", 0.5),
        ("uses_processes", 1.5),
        ("uses_temporary_files", 1.0),
        ("reads_the_project", 0.5),
        ("uses_a_hub", 0.5),
        pytest.param(
            *("uses_git", 1.0), marks=pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
        ),
        pytest.param(
            *("draws", 1.0),
            marks=pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed"),
        ),
    ],
)
async def test_an_ordinary_agent_works(runner: IsolatedRunner, tool: int, agent: str, reward: float) -> None:
    outcome = await runner.call(AgentCall(call_id="at-1", agent=agent, task={"url": f"http://127.0.0.1:{tool}"}))
    assert outcome.reward == reward, (outcome.message, outcome.error, outcome.output)


@needs_landlock
async def test_an_agent_that_may_not_write_is_told_the_option(runner: IsolatedRunner) -> None:
    outcome = await runner.call(AgentCall(call_id="at-1", agent="writes_to_the_project", task={}))
    assert outcome.failure_class is FailureClass.AGENT_ERROR
    assert outcome.message.startswith("PermissionError: [Errno 13] Permission denied: 'results.txt'; ")
    assert f"--allow-path {Path.cwd()}/results.txt" in outcome.message


@pytest.mark.skipif(landlock.abi() < landlock.NETWORK_ABI, reason="this kernel does not restrict TCP ports")
async def test_an_agent_that_may_not_connect_is_told_the_option(runner: IsolatedRunner, elsewhere: int) -> None:
    task = {"url": f"http://127.0.0.1:{elsewhere}"}
    outcome = await runner.call(AgentCall(call_id="at-1", agent="connects_elsewhere", task=task))
    assert outcome.message.startswith("RuntimeError: the tool failed; ")
    assert "--allow-net PORT" in outcome.message


@pytest.mark.skipif(landlock.abi() < landlock.NETWORK_ABI, reason="this kernel does not restrict TCP ports")
async def test_a_run_whose_network_is_the_gateway_does_not_reach_the_web(runner: IsolatedRunner, tool: int) -> None:
    call = AgentCall(call_id="at-1", agent="connects_elsewhere", task={"url": "http://127.0.0.1:80"}, network="gateway")
    assert "--allow-net PORT" in (await runner.call(call)).message
    assert "--allow-net PORT" not in (await runner.call(replace(call, network="internet"))).message
    allowed = replace(call, agent="calls_a_tool", task={"url": f"http://127.0.0.1:{tool}"})
    assert (await runner.call(allowed)).reward == 0.25


async def test_what_an_attempt_leaves_in_its_scratch_folder_goes_with_it(
    runner: IsolatedRunner, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("of another")
    task = {"kept": str(tmp_path)}
    assert (await runner.call(AgentCall(call_id="at-1", agent="leaves_much_behind", task=task))).reward == 1.0
    assert (await runner.call(AgentCall(call_id="at-2", agent="finds_nothing", task={}))).reward == 1.0
    assert (tmp_path / "kept").read_text() == "of another"


async def test_no_scratch_folder_is_left_when_the_runner_has_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    allowed = policy(home=tmp_path / "home")
    async with IsolatedRunner(AGENTS, policy=allowed) as started:
        (root,) = os.listdir(tmp_path)
        assert os.stat(tmp_path / root).st_mode & 0o777 == 0o700
        await started.call(AgentCall(call_id="at-1", agent="uses_temporary_files", task={}))
        await started.call(AgentCall(call_id="at-2", agent="leaves_much_behind", task={"kept": str(tmp_path)}))
    assert os.listdir(tmp_path) == []
