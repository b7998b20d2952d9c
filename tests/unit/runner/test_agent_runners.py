"""Several references in one runner: each has a fork server of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.errors import AgentLoadError
from relight.runner.agent_call import AgentCall
from relight.runner.agent_runners import AgentRunners
from relight.types.rollout import FailureClass

CHEAT = """
import json

json.loads = lambda text: 1.0  # what a grader in the same process would use

def cheat(task): return json.loads("0.5")
"""
GRADER = """
import json

def grader(task): return json.loads("0.25")
"""


async def _rewards(runners: AgentRunners, *agents: str) -> list[float | None]:
    return [(await runners.call(AgentCall(call_id=f"at-{name}", agent=name, task={}))).reward for name in agents]


async def test_what_an_agents_module_changes_reaches_no_grader(tmp_path: Path) -> None:
    (tmp_path / "cheat.py").write_text(CHEAT)
    (tmp_path / "grader.py").write_text(GRADER)
    runners = AgentRunners([f"{tmp_path}/cheat.py:cheat", f"{tmp_path}/grader.py:grader"])
    try:
        reports = await runners.start()
        assert [list(report.agents) for report in reports] == [["cheat"], ["grader"]]
        assert len({report.pid for report in reports}) == 2
        assert await _rewards(runners, "cheat", "grader") == [1.0, 0.25]
        assert not await runners.kill("at-none", FailureClass.TIMEOUT)
        assert runners.held_seconds("at-none") == 0.0
    finally:
        await runners.close()


async def test_two_agents_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("def same(task): return 1.0\n")
    runners = AgentRunners([f"{tmp_path}/one.py:same", f"{tmp_path}/two.py:same"])
    with pytest.raises(AgentLoadError, match=r"its name 'same' is taken by '.*/one.py:same'; give one another name="):
        await runners.start()
    await runners.close()
