"""The grader that `docs/graders.md` shows works as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relight.litagent import load_agents
from relight.litagent.agent_arguments import Invocation

PAGE = Path(__file__).parents[3] / "docs" / "graders.md"


@pytest.mark.parametrize(("said", "reward"), [("It is Paris.", 1.0), ("It is Rome.", 0.0)])
def test_the_grader_of_the_page_judges_the_last_answer(tmp_path: Path, said: str, reward: float) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code
    (tmp_path / "my_graders.py").write_text(code[1])
    judge = load_agents(f"{tmp_path / 'my_graders.py'}:judge")["judge"].agent
    answer = {"choices": [{"message": {"role": "assistant", "content": said}}]}
    task = {"input": {"answer": "Paris"}, "calls": [{"request": {}, "response": answer}], "output": ""}
    assert judge.invoke(Invocation(task)) == reward
