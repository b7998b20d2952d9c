"""For tests of agents: a model server whose answers the test writes, and attempts at tasks as the runner makes them.

With pytest, `pytest_plugins = ["relight.testing.plugin"]` in the top `conftest.py` gives the fixtures `upstream` and
`run_agent`:

    def test_the_agent_searches_once(upstream, run_agent):
        upstream.add(ToolCall("search", {"query": "x"}), "found")
        attempt = run_agent(my_agents.researcher, {"question": "x?"})
        assert attempt.reward == 1.0
        assert upstream.requests[1]["messages"][-1]["role"] == "tool"
"""

from __future__ import annotations

from relight.testing.agent_runs import AgentAttempts, FinishedAttempt
from relight.testing.answers import Answer, ToolCall
from relight.testing.upstream import Behaviour, ScriptedUpstream, break_off, fault

__all__ = [
    "AgentAttempts",
    "Answer",
    "Behaviour",
    "FinishedAttempt",
    "ScriptedUpstream",
    "ToolCall",
    "break_off",
    "fault",
]
