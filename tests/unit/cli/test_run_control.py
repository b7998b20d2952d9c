"""`relight cancel | retry | set | fork | replay | regrade`: what they send, what they refuse, what they print."""

from __future__ import annotations

import getpass
import importlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from relight.cli import fork_replay_regrade, output, run_control
from relight.errors import ConflictError
from relight.types import commands
from relight.types.payloads import ChangeResult

table = importlib.import_module("relight.cli.main")
ME = getpass.getuser()
ROLLOUT = "calc-s0003-g01-i5"


class RecordingOperator:
    """Stands for the run and for the operator, and records what they are given."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str, dict[str, Any]]] = []
        self.asked: list[tuple[str, commands.Command]] = []
        self.answer = ChangeResult(accepted=True, effective_step=4)
        self.refusal: str | None = None

    async def give(self, client: Any, run: str, action: str, value: dict[str, Any], key: Any = None) -> ChangeResult:
        if self.refusal:
            raise ConflictError(f"run {run} refused: {self.refusal}")
        self.commands.append((run, action, value))
        return self.answer

    async def write(self, run: str, action: str, value: dict[str, Any], key: str) -> ChangeResult:
        return await self.give(None, run, action, value, key)

    async def start_derived(self, run: str, command: commands.Command) -> ChangeResult:
        self.asked.append((run, command))
        return ChangeResult(accepted=True, before={"run": run, "step": 40}, after={"run": "calc-fork-1"})

    async def regrade(self, run: str, command: commands.Command) -> ChangeResult:
        self.asked.append((run, command))
        return ChangeResult(accepted=True, after={"workflow": f"train/{run}/regrade-strict"})


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> RecordingOperator:
    recorder = RecordingOperator()

    async def connect(settings: Any) -> None:
        return None

    async def find(target: str) -> tuple[str, str | None]:
        return ("calc", target if "-s0" in target else None)

    @asynccontextmanager
    async def operator() -> AsyncGenerator[RecordingOperator]:
        yield recorder

    monkeypatch.setattr(run_control, "connect_temporal", connect)
    monkeypatch.setattr(run_control, "send_command", recorder.give)
    monkeypatch.setattr(run_control, "write", recorder.write)
    monkeypatch.setattr(run_control, "find", find)
    monkeypatch.setattr(fork_replay_regrade, "operator", operator)
    return recorder


def relight(*words: str) -> Any:
    output.current = output.GlobalOptions()
    try:
        return CliRunner().invoke(table.build(), list(words))
    finally:
        output.current = output.GlobalOptions()


@pytest.mark.parametrize(
    ("words", "action", "value"),
    [
        (("cancel", "calc", "--reason", "wrong data"), "cancel", {"reason": "wrong data"}),
        (("cancel", ROLLOUT), "cancel_rollout", {"rollout_id": ROLLOUT, "reason": ""}),
        (("retry", ROLLOUT), "retry_rollout", {"rollout_id": ROLLOUT}),
        (("retry", "calc", "--failed"), "retry_failed", {"failure_class": None}),
        (("retry", "calc", "--failed", "--class", "timeout"), "retry_failed", {"failure_class": "timeout"}),
        (("set", "calc", "learning_rate=3e-5"), "set_hyperparameters", {"learning_rate": 3e-5}),
        (("set", "calc", "concurrency=64"), "set_concurrency", {"concurrency": 64}),
        (("set", "calc", "resources_id=rs-1"), "update_resources", {"resources_id": "rs-1"}),
    ],
)
def test_a_command_carries_its_values_and_its_actor(
    recorder: RecordingOperator, words: tuple[str, ...], action: str, value: dict[str, Any]
) -> None:
    ended = relight(*words)
    assert ended.exit_code == 0, ended.output
    assert recorder.commands == [("calc", action, {**value, "actor": ME})]
    assert "effective at step 4" in ended.output


def test_settings_of_several_kinds_are_several_commands(recorder: RecordingOperator) -> None:
    assert relight("set", "calc", "group_size=16", "temperature=0.8", "concurrency=8").exit_code == 0
    assert [(action, sorted(value)) for _, action, value in recorder.commands] == [
        ("set_hyperparameters", ["actor", "group_size", "temperature"]),
        ("set_concurrency", ["actor", "concurrency"]),
    ]


def test_a_value_can_come_out_of_a_file(recorder: RecordingOperator, tmp_path: Any) -> None:
    (tmp_path / "prompts.json").write_text('{"prompt": "be brief"}')
    assert relight("set", "calc", f"resources=@{tmp_path}/prompts.json").exit_code == 0
    assert recorder.commands[0][2]["resources"] == {"prompt": "be brief"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("retry", "calc"), "calc is a run: give --failed"),
        (("retry", "calc", "--failed", "--class", "bad luck"), "bad luck"),
        (("set", "calc", "learning_rate"), "learning_rate: give it as key=value"),
        (("set", "calc", "model=other"), "model: can't be set on a live run; it takes "),
        (("set", "calc", "learning_rate=1", "model=other"), "model: can't be set on a live run"),
        (("set", "calc", "resources=@none.json"), "none.json: can't be read as JSON"),
        (("fork", "calc"), "--from-step"),
        (("fork", "calc", "--from-step", "-1"), "greater than or equal to 0"),
        (("fork", "calc", "--from-step", "1", "--name", "Not A Name"), "Not A Name"),
        (("fork", "calc", "--from-step", "1", "--set", "steps"), "steps: give it as key=value"),
        (("replay", "calc", "--set", "=3"), "=3: give it as key=value"),
        (("regrade", "calc"), "--grader"),
    ],
)
def test_invalid_commands_are_refused_before_they_are_sent(
    recorder: RecordingOperator, words: tuple[str, ...], message: str
) -> None:
    ended = relight(*words)
    assert ended.exit_code == 2
    assert message in ended.output
    assert recorder.commands == []
    assert recorder.asked == []


def test_a_refusal_is_one_line_and_an_exit_code_and_json_where_that_is_wanted(recorder: RecordingOperator) -> None:
    recorder.refusal = "the run is paused already"
    ended = relight("cancel", "calc")
    assert (ended.exit_code, ended.output) == (1, "error: run calc refused: the run is paused already\n")
    as_json = relight("cancel", "calc", "--json")
    assert as_json.exit_code == 1
    error = json.loads(as_json.stdout)["error"]
    assert error == {"type": "ConflictError", "message": "run calc refused: the run is paused already"}


def test_a_change_in_json_is_the_runs_own_answer(recorder: RecordingOperator) -> None:
    recorder.answer = ChangeResult(accepted=True, before="timeout", after="requeuing", effective_step=3)
    ended = relight("retry", ROLLOUT, "--json")
    line = json.loads(ended.stdout)
    assert (line["run"], line["before"], line["after"], line["effective_step"]) == ("calc", "timeout", "requeuing", 3)


def test_an_inspection_prints_where_to_find_its_result(recorder: RecordingOperator) -> None:
    recorder.answer = ChangeResult(accepted=True, after={"inspection": f"{ROLLOUT}.inspect-1"}, effective_step=3)
    assert f"inspecting {ROLLOUT}: relight rollouts show {ROLLOUT}.inspect-1" in relight("retry", ROLLOUT).output


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (
            ("fork", "calc", "--from-step", "40", "--set", "algorithm.learning_rate=1e-6", "--name", "calc-long"),
            commands.Fork(from_step=40, name="calc-long", set={"algorithm.learning_rate": 1e-6}, actor=ME),
        ),
        (("replay", "calc"), commands.Replay(actor=ME)),
        (
            ("replay", "calc", "--from-step", "2", "--set", "grader=strict"),
            commands.Replay(from_step=2, set={"grader": "strict"}, actor=ME),
        ),
        (
            ("regrade", "calc", "--grader", "strict", "--step", "12"),
            commands.Regrade(grader="strict", step=12, actor=ME),
        ),
    ],
)
def test_forks_replays_and_regrades_are_requested_with_their_models(
    recorder: RecordingOperator, words: tuple[str, ...], command: commands.Command
) -> None:
    ended = relight(*words, "--detach")
    assert ended.exit_code == 0, ended.output
    assert recorder.asked == [("calc", command)]
    asked = json.loads(relight(*words, "--detach", "--json").stdout.splitlines()[0])
    assert asked["accepted"] is True
    assert asked["run"] == ("calc" if words[0] == "regrade" else "calc-fork-1")
