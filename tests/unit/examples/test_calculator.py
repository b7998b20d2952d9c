"""The calculator example: its data, its tool, and its agent against a scripted OpenAI-compatible server."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = Path(__file__).parents[3] / "examples" / "calculator"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"calculator_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


agent = load("agent")
make_data = load("make_data")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text().splitlines()]


@dataclass
class ScriptedServer:
    """Answers each chat completion with the next of `replies`, and keeps what it was asked."""

    replies: list[str]
    endpoint: str = ""
    api_key: str = "key-of-this-attempt"
    model: str = "policy"
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers["Authorization"])
        message = {"role": "assistant", "content": self.replies[len(self.requests) - 1]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "policy"}
        return web.json_response({**head, "choices": [choice]})


@asynccontextmanager
async def serving(*replies: str) -> AsyncGenerator[ScriptedServer]:
    server = ScriptedServer(list(replies))
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        server.endpoint = f"http://{host}:{port}/v1"
        yield server
    finally:
        await runner.cleanup()


ONE = {"question": "7*8?", "calls": 1, "answer": 56}
TWO = {"question": "(7*8)+3?", "calls": 2, "answer": 59}


async def test_a_question_of_one_call_takes_one_call_and_scores_one() -> None:
    async with serving("mul(7,8)") as server:
        assert await agent.calculator(ONE, server) == 1.0
    assert server.keys == ["Bearer key-of-this-attempt"]
    assert server.requests[0]["messages"] == [{"role": "user", "content": "7*8?"}]


async def test_the_first_result_is_fed_back_in_the_second_turn() -> None:
    async with serving("mul(7,8)", "add(56,3)") as server:
        assert await agent.calculator(TWO, server) == 1.0
    assert [(m["role"], m["content"]) for m in server.requests[1]["messages"]] == [
        ("user", "(7*8)+3?"),
        ("assistant", "mul(7,8)"),
        ("user", "56"),
    ]


async def test_the_agent_sets_no_sampling_parameters() -> None:
    async with serving("mul(7,8)") as server:
        await agent.calculator(ONE, server)
    assert set(server.requests[0]) == {"model", "messages", "max_tokens"}


async def test_a_malformed_call_ends_the_episode_with_reward_zero() -> None:
    async with serving("mul(7 8)") as server:
        assert await agent.calculator(TWO, server) == 0.0
    assert len(server.requests) == 1


async def test_a_wrong_operand_scores_nothing_though_the_call_is_well_formed() -> None:
    async with serving("mul(7,8)", "add(56,4)") as server:
        assert await agent.calculator(TWO, server) == 0.0


@given(st.sampled_from(["add", "sub", "mul"]), st.integers(-9999, 9999), st.integers(-9999, 9999))
def test_every_well_formed_call_is_run(name: str, left: int, right: int) -> None:
    expected = {"add": left + right, "sub": left - right, "mul": left * right}[name]
    assert agent.run_tool(f"{name}({left},{right})") == expected


@given(st.one_of(st.text(), st.text(alphabet="addsubmul(),-0123456789 \n٣")))
def test_only_exact_calls_are_run(text: str) -> None:
    result = agent.run_tool(text)
    if result is not None:
        name, arguments = text.removesuffix(")").split("(")
        assert name in {"add", "sub", "mul"}
        assert text.isascii()
        assert len(arguments.split(",")) == 2


@pytest.mark.parametrize(
    "text", ["", "56", "mul(7,8", "mul(7,8) ", "mul(7,8)\n", "div(7,8)", "mul(7,8,9)", "mul(\u0667,8)"]
)
def test_text_that_is_almost_a_call_is_not_run(text: str) -> None:
    assert agent.run_tool(text) is None


def test_importing_the_agent_opens_no_file_or_connection() -> None:
    before = threading.active_count()
    module = load("agent")
    assert threading.active_count() == before
    assert not [name for name, value in vars(module).items() if "Client" in type(value).__name__]


def test_the_held_out_questions_are_in_no_training_data() -> None:
    train = [row["question"] for row in rows("train")]
    heldout = [row["question"] for row in rows("heldout")]
    assert not set(train) & set(heldout)
    assert len(set(train)) == len(train)
    assert len(set(heldout)) == len(heldout) >= 240


@pytest.mark.parametrize("name", ["train", "heldout"])
def test_at_least_a_third_of_the_tasks_take_two_turns(name: str) -> None:
    tasks = rows(name)
    assert sum(task["calls"] == 2 for task in tasks) * 3 >= len(tasks)


def test_the_data_files_are_what_the_script_makes() -> None:
    assert make_data.split() == (rows("train"), rows("heldout"))


@pytest.mark.parametrize("name", ["train", "heldout"])
def test_every_answer_is_the_questions_value(name: str) -> None:
    for task in rows(name):
        assert eval(task["question"].removesuffix("?")) == task["answer"], task
        assert task["calls"] == (2 if "(" in task["question"] else 1)
