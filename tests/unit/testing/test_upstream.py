"""The scripted upstream, as the official clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from relight.testing import Answer, ScriptedUpstream, ToolCall, break_off, fault

ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "7*8?"}]}
CALLS = Answer("Let me see.", (ToolCall("mul", {"a": 7, "b": [1, 2]}), ToolCall("stop")))


@pytest.fixture
async def listening() -> AsyncGenerator[ScriptedUpstream]:
    async with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
async def openais(listening: ScriptedUpstream) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=listening.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropics(listening: ScriptedUpstream) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=listening.origin, api_key="k", max_retries=0) as client:
        yield client


async def test_chat_completions_whole_and_streamed_are_the_same(
    listening: ScriptedUpstream, openais: openai.AsyncOpenAI
) -> None:
    listening.add(CALLS, CALLS)
    whole = await openais.chat.completions.create(**ASKED)
    async with openais.chat.completions.stream(**ASKED) as events:
        streamed = await events.get_final_completion()
    for answer in (whole, streamed):
        message = answer.choices[0].message
        assert (message.content, answer.choices[0].finish_reason) == ("Let me see.", "tool_calls")
        assert [call.function.model_dump(include={"name", "arguments"}) for call in message.tool_calls or ()] == [
            {"name": "mul", "arguments": '{"a":7,"b":[1,2]}'},
            {"name": "stop", "arguments": "{}"},
        ]
    assert listening.headers[0]["authorization"] == "Bearer k"
    assert listening.paths == ["/v1/chat/completions"] * 2


async def test_messages_whole_and_streamed_are_the_same(
    listening: ScriptedUpstream, anthropics: anthropic.AsyncAnthropic
) -> None:
    listening.add(CALLS, CALLS)
    whole = await anthropics.messages.create(**ASKED, max_tokens=9)
    async with anthropics.messages.stream(**ASKED, max_tokens=9) as events:
        streamed = await events.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
        assert message.content[1].model_dump(include={"name", "input"}) == {
            "name": "mul",
            "input": {"a": 7, "b": [1, 2]},
        }


async def test_responses_whole_and_streamed_are_the_same(
    listening: ScriptedUpstream, openais: openai.AsyncOpenAI
) -> None:
    listening.add("It is 56.", "It is 56.")
    assert (await openais.responses.create(model="m", input="7*8?")).output_text == "It is 56."
    async with openais.responses.stream(model="m", input="7*8?") as events:
        assert (await events.get_final_response()).output_text == "It is 56."


async def test_calls_get_the_script_in_order_then_the_default_then_an_error(
    listening: ScriptedUpstream, openais: openai.AsyncOpenAI
) -> None:
    listening.add("one", "two")
    listening.default = "and so on"
    said = [(await openais.chat.completions.create(**ASKED)).choices[0].message.content for _ in range(4)]
    assert said == ["one", "two", "and so on", "and so on"]
    listening.default = None
    with pytest.raises(openai.InternalServerError, match="the script has no answer for call 5: add one"):
        await openais.chat.completions.create(**ASKED)


async def test_faults_have_the_form_of_the_api_that_was_asked(
    listening: ScriptedUpstream, openais: openai.AsyncOpenAI, anthropics: anthropic.AsyncAnthropic
) -> None:
    listening.add(fault(429, "slowly", **{"retry-after": "7"}), fault(529, "busy"), break_off(), fault(400, {"a": 1}))
    with pytest.raises(openai.RateLimitError, match="slowly") as limited:
        await openais.chat.completions.create(**ASKED)
    assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(anthropic.APIStatusError, match="busy") as busy:
        await anthropics.messages.create(**ASKED, max_tokens=9)
    assert busy.value.status_code == 529
    with pytest.raises(openai.APIConnectionError):
        await openais.chat.completions.create(**ASKED)
    with pytest.raises(openai.BadRequestError, match="'a': 1"):
        await openais.chat.completions.create(**ASKED)


async def test_a_route_that_is_none_is_named(listening: ScriptedUpstream, openais: openai.AsyncOpenAI) -> None:
    listening.add("x")
    with pytest.raises(openai.NotFoundError, match="no such route: /v1/embeddings"):
        await openais.embeddings.create(model="m", input="x")


async def test_a_gate_holds_the_chunks_of_a_stream(listening: ScriptedUpstream, openais: openai.AsyncOpenAI) -> None:
    opened = asyncio.Event()

    async def gate(number: int) -> None:
        if number == 1:
            await opened.wait()

    listening.gate = gate
    listening.add("one two")
    stream = aiter(await openais.chat.completions.create(**ASKED, stream=True))
    assert (await anext(stream)).choices[0].delta.content == "one "
    second = asyncio.ensure_future(anext(stream))
    assert not second.done()
    opened.set()
    assert (await second).choices[0].delta.content == "two"


async def test_what_is_no_model_call_takes_no_answer_of_the_script(listening: ScriptedUpstream) -> None:
    listening.add("the answer")
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{listening.origin}/v1/traces", data=b"\x0a\xff") as answer:
            assert answer.status == 200
        async with session.post(f"{listening.origin}/v1/messages/count_tokens", json=ASKED) as answer:
            assert answer.status == 404
    assert (listening.requests, len(listening.script)) == ([], 1)
