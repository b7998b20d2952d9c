"""An attempt that takes more than it may is killed, and its end names the limit."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from relight.confinement import landlock
from relight.confinement.policy import policy
from relight.processes import linux
from relight.runner.agent_call import AgentCall
from relight.runner.attempt_limits import AttemptLimits
from relight.runner.process_isolation import IsolatedRunner
from relight.types.rollout import FailureClass
from tests.unit.runner import greedy_agents
from tests.unit.runner.support import Seen

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENTS = [
    f"{greedy_agents.__name__}:{name}"
    for name, value in vars(greedy_agents).items()
    if inspect.isfunction(value) and value.__module__ == greedy_agents.__name__ and not name.startswith("_")
]
LIMITS = AttemptLimits(memory_bytes=150 * 2**20, processes=50, scratch_bytes=20 * 2**20)
MEMORY = (FailureClass.OUT_OF_MEMORY, "its processes held more than 157,286,400 bytes of memory")
PROCESSES = (FailureClass.AGENT_ERROR, "it ran more than 50 processes and threads")
SCRATCH = (FailureClass.AGENT_ERROR, "it wrote more than 20,971,520 bytes to its scratch folder")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def greedy(tmp_path_factory: pytest.TempPathFactory, namespaces: bool) -> AsyncGenerator[IsolatedRunner]:
    """Serves them with small limits."""
    allowed = policy(home=tmp_path_factory.mktemp("home"))
    async with IsolatedRunner(AGENTS, policy=allowed, limits=LIMITS, namespaces=namespaces) as started:
        yield started


@pytest.mark.parametrize(
    ("agent", "end"),
    [
        ("forks_with_memory", MEMORY),
        ("maps_shared_memory", MEMORY),
        ("writes_to_a_file_in_memory", MEMORY),
        ("forks", PROCESSES),
        ("starts_threads", PROCESSES),
        ("fills_the_disk", SCRATCH),
        ("fills_the_disk_unseen", SCRATCH),
    ],
)
async def test_an_attempt_over_a_limit_is_killed(
    greedy: IsolatedRunner, agent: str, end: tuple[FailureClass, str]
) -> None:
    outcome = await greedy.call(AgentCall(call_id="at-1", agent=agent, task={}))
    assert (outcome.kind, outcome.failure_class, outcome.message) == ("killed", *end)
    assert linux.children((await greedy.start()).pid) == []


async def test_memory_that_processes_share_counts_once(greedy: IsolatedRunner) -> None:
    if os.getuid() != 0 and not landlock.abi():
        pytest.skip("without Landlock an ordinary user's attempts are closed to the runner, which counts too much then")
    assert (await greedy.call(AgentCall(call_id="at-1", agent="shares_much", task={}))).reward == 1.0


async def test_the_memory_limit_of_a_run_can_not_be_raised(greedy: IsolatedRunner) -> None:
    call = AgentCall(call_id="at-1", agent="raises_its_soft_limit", task={}, memory_limit_bytes=32 * 2**20)
    outcome = await greedy.call(call)
    assert outcome.failure_class is FailureClass.OUT_OF_MEMORY
    assert outcome.exit.peak_rss_bytes < 150 * 2**20


async def test_an_attempt_that_forks_on_and_on_leaves_nothing(greedy: IsolatedRunner) -> None:
    seen = Seen()
    async with asyncio.TaskGroup() as group:
        call = AgentCall(call_id="at-1", agent="forks_on_and_on", task={})
        running = group.create_task(greedy.call(call, on_span=seen))
        await seen.ready.wait()
        await greedy.kill("at-1", FailureClass.TIMEOUT)
    assert running.result().failure_class is FailureClass.TIMEOUT
    assert linux.children((await greedy.start()).pid) == []


async def test_a_neighbour_within_the_limits_is_not_killed(greedy: IsolatedRunner, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(greedy.call(AgentCall(call_id="at-2", agent="shares_much", task={})))
        group.create_task(greedy.call(AgentCall(call_id="at-1", agent="forks", task={})))
    assert quiet.result().reward == 1.0
