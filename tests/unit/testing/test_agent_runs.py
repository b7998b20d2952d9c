"""Attempts of agents against a scripted upstream, by the fixtures that users have."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from relight.errors import AgentLoadError
from relight.testing import FinishedAttempt, ScriptedUpstream, ToolCall, fault
from relight.testing.agent_runs import served
from relight.types.resources import PromptTemplate
from relight.types.rollout import FailureClass, RolloutConfig
from tests.unit.testing import agents

Run = Callable[..., FinishedAttempt]
TASK = {"question": "7*8?", "answer": "It is 56."}
PROMPT = {"prompt": PromptTemplate(template="Say {task}.")}


def test_an_agent_that_uses_a_tool_runs_in_a_process_of_its_own(upstream: ScriptedUpstream, run_agent: Run) -> None:
    upstream.add(ToolCall("mul", {"a": 7, "b": 8}), "It is 56.")
    attempt = run_agent(agents.multiplies, TASK)
    assert (attempt.succeeded, attempt.reward, attempt.failure_class) == (True, 1.0, None)
    assert [request["messages"][-1]["role"] for request in upstream.requests] == ["user", "tool"]
    [message, _] = attempt.spans
    called, _, pid = message.attributes["agentlightning.message.body"].partition(" It is 56. ")
    assert called == '{"a":7,"b":8}'
    assert int(pid) != os.getpid()
    assert [span.sequence_id for span in attempt.spans] == [1, 2]
    assert {path.split("/")[2] for path in upstream.paths} == {attempt.attempt.rollout_id}


def test_an_agent_gets_its_resources_and_the_method_of_its_mode(upstream: ScriptedUpstream, run_agent: Run) -> None:
    upstream.add("one two three")
    attempt = run_agent(agents.writer, "hello", resources=PROMPT)
    assert attempt.rewards == {"primary": 1.0, "words": 3.0}
    assert upstream.requests[0]["messages"] == [{"role": "user", "content": "Say hello."}]
    assert run_agent(agents.writer, "hello", mode="val").reward == 0.25


def test_a_fault_of_the_upstream_reaches_the_agent(upstream: ScriptedUpstream, run_agent: Run) -> None:
    upstream.add(fault(400, "too long"))
    attempt = run_agent(agents.multiplies, TASK)
    assert attempt.failure_class is FailureClass.AGENT_ERROR
    assert "RuntimeError: 400" in attempt.message
    assert "too long" in attempt.message


def test_a_call_beyond_the_script_is_an_error_that_says_so(upstream: ScriptedUpstream, run_agent: Run) -> None:
    upstream.add(ToolCall("mul"))
    attempt = run_agent(agents.multiplies, TASK)
    assert not attempt.succeeded
    assert "the script has no answer for call 2" in attempt.message


def test_what_the_agent_lacks_is_in_its_message(run_agent: Run) -> None:
    attempt = run_agent(agents.writer, "hello")
    assert (attempt.failure_class, attempt.message) == (FailureClass.AGENT_ERROR, "KeyError: 'prompt'")


def test_deadlines_hold_as_in_the_runner(upstream: ScriptedUpstream, run_agent: Run) -> None:
    async def never(request: Any, body: Any) -> Any:
        await asyncio.Event().wait()

    upstream.add(never)
    attempt = run_agent(agents.multiplies, TASK, config=RolloutConfig(timeout_seconds=0.5))
    assert attempt.failure_class is FailureClass.TIMEOUT


def test_agents_of_a_module_share_what_imported_them_and_a_plain_function_is_named_with_it() -> None:
    assert served(agents.multiplies) == (agents.__file__, "multiplies")
    assert served(agents.writer) == (agents.__file__, "writer")
    assert served(agents.plain) == (f"{agents.__file__}:plain", "plain")
    assert served("pkg.agents:search") == ("pkg.agents:search", "search")


def test_an_agent_that_no_process_can_import_is_refused(run_agent: Run) -> None:
    with pytest.raises(AgentLoadError, match="assign it to a name at the top of a module"):
        run_agent(agents.unnamed[0])
