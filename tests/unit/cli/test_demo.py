"""What the demo says at its end."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from relight.cli import demo, output
from relight.cli.demo_stack import DemoStack
from relight.cli.progress import RunOutcome, RunSnapshot
from relight.cli.render import own_program
from relight.settings import Settings
from relight.stack import stack_file

from .example_views import a_run, an_evaluation

FINISHED = RunOutcome("finished")


def test_the_last_line_has_the_real_figures() -> None:
    view = a_run(evaluations=[an_evaluation(0, 0.5187), an_evaluation(30, 0.8), an_evaluation(60, 0.9312)])
    assert demo.last_line(RunSnapshot(view, outcome=FINISHED)) == "held-out score: 0.52 -> 0.93"


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        (RunSnapshot(a_run(), outcome=FINISHED), "held-out score: not measured"),
        (
            RunSnapshot(a_run(evaluations=[an_evaluation(0), an_evaluation(1)]), outcome=RunOutcome("failed")),
            "the run failed",
        ),
        (RunSnapshot(), "the run has not ended"),
    ],
)
def test_a_run_that_was_not_measured_or_not_finished_claims_nothing(snapshot: RunSnapshot, text: str) -> None:
    assert demo.last_line(snapshot) == text


def test_the_training_time_is_that_of_steps_and_evaluations() -> None:
    view = a_run(evaluations=[an_evaluation(0), an_evaluation(60)])
    snapshot = RunSnapshot(view, outcome=FINISHED, training_seconds=200.4)
    assert demo.time_line(snapshot, 321.0) == "time             321 s in all; training 206 s of 300 s"


def test_the_closing_message_names_every_path_and_how_to_continue(tmp_path: Path) -> None:
    settings = Settings(temporal_ui_url="http://127.0.0.1:8233")
    svg = tmp_path / "reward.svg"
    stopped = "\n".join(demo.result_lines(a_run(), settings, tmp_path, svg, kept=False))
    kept = "\n".join(demo.result_lines(a_run(), settings, tmp_path, svg, kept=True))
    for text in (stopped, kept):
        assert str(svg) in text
        assert settings.store_url in text
        assert "http://127.0.0.1:8233/namespaces/default/workflows/train%2Fcalc-1" in text
        assert "status --watch calc-1" in text
    assert "up --detach && " in stopped
    assert "down" in kept
    assert "up --detach" not in kept


def test_the_closing_message_names_an_existing_program() -> None:
    program = own_program(Path(sys.executable).parent.parent)
    assert program in ("relight", "bin/relight", f"{sys.executable} -m relight.cli")


async def test_a_running_stack_is_used_and_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "current", output.GlobalOptions({"home": tmp_path}))
    stack = DemoStack(tmp_path, "agents:none", keep=False)
    with stack_file.locked(tmp_path):
        stack_file.write_stack(tmp_path, {"settings": {"store_url": "http://127.0.0.1:5"}})
        async with AsyncExitStack() as resources:
            settings = await stack.boot(resources)
        assert stack_file.running_pid(tmp_path) is not None
    assert settings.store_url == "http://127.0.0.1:5"
    assert stack.kept
    assert "is running already" in capsys.readouterr().out
