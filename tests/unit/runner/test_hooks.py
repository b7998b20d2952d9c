"""Hooks in the processes of attempts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from relight.errors import AgentLoadError
from relight.litagent import load_agents
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.shared_isolation import SharedRunner
from relight.semconv import AGL_ANNOTATION, AGL_EXCEPTION
from tests.unit.runner import hooked_agents

GIVEN = "['agent', 'rollout', 'runner']"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runner() -> AsyncGenerator[SharedRunner]:
    """With agents that have hooks."""
    async with SharedRunner([hooked_agents.__file__]) as started:
        yield started


async def called(runner: SharedRunner, agent: str, alone: bool) -> AgentOutcome:
    """One call, in a process of its own or a shared one."""
    now = {"rollout_id": "ro", "start_time": 1.0, "status": "running"}
    attempt = {**now, "attempt_id": "at", "sequence_id": 1}
    return await runner.call(
        AgentCall(call_id=agent, agent=agent, task=7, rollout={**now, "attempt": attempt}, alone=alone)
    )


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("agent", ["sees_hooks", "sees_hooks_async"])
async def test_hooks_run_around_an_agent_and_what_they_raise_is_in_its_spans_and_output(
    runner: SharedRunner, agent: str, alone: bool
) -> None:
    outcome = await called(runner, agent, alone)
    assert (outcome.kind, outcome.reward) == ("returned", 0.5)
    broken, *_ = [span for span in outcome.spans if span.name == AGL_EXCEPTION]
    assert broken.attributes["relight.hook"] == "on_trace_start of Telling"
    printed = [line for line in outcome.output.splitlines() if line.startswith(("start", "trace end", "end"))]
    seen = [AGL_EXCEPTION, "agentlightning.message", "agentlightning.annotation"]
    assert printed == [f"start {agent} None 7", "trace end None", f"end {seen} {GIVEN}"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("alone", [True, False])
async def test_of_an_agent_that_fails_the_last_hook_runs(runner: SharedRunner, alone: bool) -> None:
    outcome = await called(runner, "failing", alone)
    assert outcome.message == "KeyError: 'lost'"
    assert f"end {[AGL_EXCEPTION]} {GIVEN}" in outcome.output
    assert "trace end" not in outcome.output


@pytest.mark.asyncio(loop_scope="module")
async def test_of_an_agent_that_exits_the_last_hook_runs(runner: SharedRunner) -> None:
    outcome = await called(runner, "exiting", alone=True)
    assert outcome.message == "SystemExit: 3"
    assert f"end {[AGL_EXCEPTION]} {GIVEN}" in outcome.output


@pytest.mark.asyncio(loop_scope="module")
async def test_where_the_process_ends_the_attempts_message_says_that_hooks_have_not_run(runner: SharedRunner) -> None:
    outcome = await called(runner, "dying", alone=True)
    assert outcome.message == "the agent's process exited with 3 before it returned; not all its hooks have run"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("alone", [True, False])
async def test_hooks_do_not_run_in_a_copy_that_the_agent_forked(runner: SharedRunner, alone: bool) -> None:
    outcome = await called(runner, "forking", alone)
    assert (outcome.reward, [span.name for span in outcome.spans]) == (0.5, [AGL_EXCEPTION, AGL_ANNOTATION])
    assert len([line for line in outcome.output.splitlines() if line.startswith("end")]) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_a_copy_that_a_hook_forked_reports_no_result(runner: SharedRunner) -> None:
    outcome = await called(runner, "forked_before", True)
    assert (outcome.reward, [span.name for span in outcome.spans]) == (0.5, [AGL_ANNOTATION])


def test_hooks_of_another_kind_are_refused_when_the_agent_is_loaded(tmp_path: Path) -> None:
    text = "from relight import rollout\n@rollout\ndef a(task): pass\na.hooks = [print]\n"
    (tmp_path / "wrongly_hooked.py").write_text(text)
    with pytest.raises(
        AgentLoadError, match=r"its hooks hold a builtin_function_or_method; give instances of relight\.Hook"
    ):
        load_agents(f"{tmp_path / 'wrongly_hooked.py'}:a")
