"""Each dialect on a real vLLM: what is on record is what the engine's chat route says to the same prompt and seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from relight.transport.http_client import HttpClient
from tests.support.served import Served, check_row

QUESTION = "7*8?"
SYSTEM = "Be brief."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "enum": ["7", "8"]}},
    "required": ["a"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {
    "model": "policy",
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
}
NAMED = {"type": "function", "function": {"name": "mul"}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "mul", "parameters": PARAMETERS}}], "tool_choice": NAMED}
Ask = Callable[[Served], Awaitable[str]]


async def chat_route(engine_socket: Path, **asked: Any) -> Any:
    """What the engine itself says."""
    client = HttpClient(f"unix:{engine_socket}")
    body = {**CHAT, **asked, "return_token_ids": True, "logprobs": True}
    async with client.request("POST", "/v1/chat/completions", orjson.dumps(body)) as answer:
        content = orjson.loads(await answer.read())
    client.close()
    return content


async def respond(served: Served) -> str:
    async with openai.AsyncOpenAI(**served.address) as client:
        return (await client.responses.create(model="policy", instructions=SYSTEM, input=QUESTION)).output_text


async def respond_streaming(served: Served) -> str:
    async with openai.AsyncOpenAI(**served.address) as client:
        stream = await client.responses.create(model="policy", instructions=SYSTEM, input=QUESTION, stream=True)
        events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text  # type: ignore[union-attr]
    return text


def claude(served: Served) -> anthropic.AsyncAnthropic:
    """The official client, at the address that an agent is handed."""
    return anthropic.AsyncAnthropic(base_url=served.attempt.base_url, api_key=served.attempt.token)


ASK: Any = {"model": "policy", "max_tokens": 99, "system": SYSTEM, "messages": [{"role": "user", "content": QUESTION}]}


async def message(served: Served) -> str:
    async with claude(served) as client:
        return (await client.messages.create(**ASK)).content[0].text  # type: ignore[union-attr]


async def message_streaming(served: Served) -> str:
    async with claude(served) as client, client.messages.stream(**ASK) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert final.content[0].text == "".join(texts)  # type: ignore[union-attr]
    assert final.usage.input_tokens > 0
    return "".join(texts)


@pytest.mark.parametrize(
    ("route", "ask"),
    [
        ("responses", respond),
        ("responses", respond_streaming),
        ("messages", message),
        ("messages", message_streaming),
    ],
)
async def test_each_dialect_records_the_calls_that_the_chat_route_records(
    served: Served, engine_socket: Path, route: str, ask: Ask
):
    text = await ask(served)
    (row,) = await served.rows(1)
    check_row(row, 1)
    same = await chat_route(engine_socket, seed=row["seed"], **row["sampling"])
    choice = same["choices"][0]
    assert row["route"] == route
    assert row["prompt_token_ids"] == same["prompt_token_ids"]
    assert row["token_ids"] == choice["token_ids"]
    assert row["logprobs"] == pytest.approx([entry["logprob"] for entry in choice["logprobs"]["content"]], abs=1e-4)
    assert text == choice["message"]["content"]


async def test_tool_calls_of_each_dialect_are_those_of_the_chat_route(served: Served, engine_socket: Path):
    await served.database.pool.execute("update steps set plan = plan || $1", {"sampling": {"max_tokens": 200}})
    function: Any = {"type": "function", "name": "mul", "parameters": PARAMETERS, "strict": True}
    tool: Any = {"name": "mul", "input_schema": PARAMETERS}
    async with openai.AsyncOpenAI(**served.address) as client:
        responded = await client.responses.create(
            model="policy",
            instructions=SYSTEM,
            input=QUESTION,
            tools=[function],
            tool_choice={"type": "function", "name": "mul"},
        )
    async with (
        claude(served) as client,
        client.messages.stream(
            **{**ASK, "max_tokens": 200}, tools=[tool], tool_choice={"type": "tool", "name": "mul"}
        ) as stream,
    ):
        said = await stream.get_final_message()
    rows = await served.rows(2)
    assert (responded.output[0].type, said.content[0].type) == ("function_call", "tool_use")
    called: Any = responded.output[0].arguments, orjson.dumps(said.content[0].input).decode()  # type: ignore[union-attr]
    for row, arguments in zip(rows, called, strict=True):
        same = await chat_route(engine_socket, seed=row["seed"], **row["sampling"], **TOOLS)
        choice = same["choices"][0]
        assert row["token_ids"] == choice["token_ids"]
        assert row["logprobs"] == pytest.approx([entry["logprob"] for entry in choice["logprobs"]["content"]], abs=1e-4)
        assert orjson.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == orjson.loads(arguments)
    assert said.stop_reason == "tool_use"
