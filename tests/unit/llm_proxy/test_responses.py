"""OpenAI's Responses API through a gateway that listens, with the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.fake_dialogue import saying, tool_call
from tests.support.fake_engine import PROMPT, FakeEngine, die, logprob, status, token_ids
from tests.support.gateway import TOKEN, ScriptedStore, listening_gateway
from tests.unit.llm_proxy.parts import parts, said

THINKING = {
    "reasoning": "seven times eight",
    "content": "I compute.",
    "tool_calls": [tool_call(1, "mul", '{"a": 7, "b": 8}'), tool_call(2, "add", "{}")],
}
MUL: Any = {"type": "function", "name": "mul", "parameters": {"type": "object", "properties": {}}, "strict": False}


@asynccontextmanager
async def agent(tmp_path: Path) -> AsyncGenerator[tuple[Any, ScriptedStore, FakeEngine]]:
    """The official client's `responses`, the store and the engine."""
    async with (
        parts(tmp_path) as (client, store, engine),
        openai.AsyncOpenAI(base_url=f"{client.base()}/v1", api_key=TOKEN) as official,
    ):
        yield official.responses, store, engine


async def test_a_text_is_answered_and_its_tokens_are_recorded(tmp_path: Path):
    async with agent(tmp_path) as (responses, store, engine):
        answer = await responses.create(model="policy", input="7*8?", instructions="Be brief.", max_output_tokens=5)
        await store.until(lambda: store.delivered() == {1: "yes"})
    record = store.calls()[1]
    assert answer.output_text == said(record.seed, count=5)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.store, answer.temperature, answer.usage.input_tokens) == (False, 0.7, len(PROMPT))
    assert record.route == "responses"
    assert record.prompt_token_ids == PROMPT
    assert record.choices[0].response_token_ids == token_ids(record.seed, 0, 5)
    assert record.choices[0].logprobs == [logprob(token) for token in token_ids(record.seed, 0, 5)]
    assert engine.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "7*8?"},
    ]


async def test_tool_calls_and_their_outputs_become_the_chat_that_the_model_wrote(tmp_path: Path):
    async with agent(tmp_path) as (responses, _, engine):
        engine.behave(saying(THINKING, "tool_calls"))
        asked: list[Any] = [{"role": "user", "content": "7*8?"}]
        first = await responses.create(model="policy", input=asked, tools=[MUL])
        asked += [item.model_dump(exclude_none=True) for item in first.output]
        asked.append({"type": "function_call_output", "call_id": "chatcmpl-tool-1", "output": "56"})
        await responses.create(model="policy", input=asked, tools=[MUL])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (first.output[2].name, first.output[2].arguments) == ("mul", '{"a": 7, "b": 8}')
    assert first.status == "completed"
    assert engine.requests[1]["messages"] == [
        {"role": "user", "content": "7*8?"},
        {"role": "assistant", **THINKING},
        {"role": "tool", "tool_call_id": "chatcmpl-tool-1", "content": "56"},
    ]
    assert engine.requests[0]["tools"][0]["function"]["name"] == "mul"


async def test_events_come_in_the_official_order_and_add_up_to_the_same_answer(tmp_path: Path):
    async with agent(tmp_path) as (responses, store, engine):
        engine.behave(saying(THINKING, "tool_calls"), saying(THINKING, "tool_calls"))
        whole = await responses.create(model="policy", input="7*8?", tools=[MUL])
        stream = await responses.create(model="policy", input="7*8?", tools=[MUL], stream=True)
        events = [event async for event in stream]
    kinds = [event.type.removeprefix("response.") for event in events]
    shortened = [kind for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]
    added, done = "content_part.added", "content_part.done"
    assert shortened == [
        *("created", "in_progress"),
        *("output_item.added", added, "reasoning_text.delta", "reasoning_text.done", done, "output_item.done"),
        *("output_item.added", added, "output_text.delta", "output_text.done", done, "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output == whole.output
    assert events[-1].response.usage == whole.usage
    record = store.calls()[2]
    assert record.choices[0].response_token_ids == token_ids(record.seed, 0, len(record.choices[0].logprobs or ()))


async def test_the_clients_own_stream_helper_understands_the_events(tmp_path: Path):
    async with agent(tmp_path) as (responses, _, engine):
        engine.behave(saying({"content": "fifty-six"}))
        async with responses.stream(model="policy", input="7*8?") as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == "fifty-six"
    assert len(texts) > 1


async def test_deltas_arrive_while_the_engine_still_samples_and_the_end_waits_for_the_commit(tmp_path: Path):
    async with agent(tmp_path) as (responses, store, engine):
        more, three = asyncio.Event(), asyncio.Event()

        async def gate(number: int) -> None:
            if number == 4:
                await more.wait()

        engine.token_gate = gate
        store.commit_gate.clear()
        stream = await responses.create(model="policy", input="7*8?", stream=True)
        seen: list[str] = []

        async def follow() -> None:
            async for event in stream:
                seen.append(event.type)
                if seen.count("response.output_text.delta") == 3:
                    three.set()

        following = asyncio.create_task(follow())
        await three.wait()
        more.set()
        await store.until(lambda: store.committing > 0)
        assert "response.output_text.done" not in seen
        assert "response.incomplete" not in seen
        store.commit_gate.set()
        await following
    assert seen[-1] == "response.incomplete"


async def test_an_engine_that_dies_midway_is_replaced_without_a_visible_gap(tmp_path: Path):
    async with agent(tmp_path) as (responses, store, engine):
        died = False

        async def dies_once(number: int) -> None:
            nonlocal died
            if number == 4 and not died:
                died = True
                raise ConnectionError

        engine.token_gate = dies_once
        stream = await responses.create(model="policy", input="7*8?", stream=True)
        events = [event async for event in stream]
    assert died
    assert len(engine.requests) == 2
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == said(store.calls()[1].seed)
    assert [event.type for event in events].count("response.created") == 1


async def test_logprobs_are_shown_to_an_agent_that_includes_them(tmp_path: Path):
    include: Any = ["message.output_text.logprobs"]
    async with agent(tmp_path) as (responses, store, _):
        answer = await responses.create(model="policy", input="7*8?", include=include)
        plain = await responses.create(model="policy", input="7*8?")
    shown = [entry.logprob for entry in answer.output[0].content[0].logprobs]
    assert shown == store.calls()[1].choices[0].logprobs
    assert plain.output[0].content[0].logprobs is None


async def test_an_undelivered_answer_is_given_again_in_this_dialect(tmp_path: Path):
    async with agent(tmp_path) as (responses, store, engine):
        for stream in (False, True):
            await drained(await responses.create(model="policy", input="7*8?", stream=stream))
        await store.until(lambda: store.delivered() == {1: "yes", 2: "yes"})
        store.marks = {("a", 1): "no", ("a", 2): "no"}
        async with (
            listening_gateway(store) as after,
            openai.AsyncOpenAI(base_url=f"{after.base()}/v1", api_key=TOKEN) as official,
        ):
            whole = await official.responses.create(model="policy", input="7*8?")
            events = await drained(await official.responses.create(model="policy", input="7*8?", stream=True))
    assert whole.output_text == said(store.calls()[1].seed)
    assert events[-1].response.output_text == said(store.calls()[2].seed)
    assert len(engine.requests) == 2


async def drained(stream: Any) -> list[Any]:
    """All events, where it is a stream."""
    return [event async for event in stream] if hasattr(stream, "__aiter__") else []


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input_file"),
        ({"input": [{"role": "owner", "content": "x"}]}, "owner"),
        ({"tool_choice": {"type": "mcp"}, "tools": [MUL]}, "mcp"),
        ({"max_output_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(tmp_path: Path, asked: dict[str, Any], named: str):
    async with agent(tmp_path) as (responses, _, engine):
        with pytest.raises(openai.BadRequestError, match=named):
            await responses.create(**{"model": "policy", "input": "7*8?", **asked})
    assert not engine.requests


async def test_errors_become_the_clients_own_classes_also_during_a_stream(tmp_path: Path):
    async with agent(tmp_path) as (responses, store, engine):
        engine.behave(status(400, "too long"))
        with pytest.raises(openai.BadRequestError, match="too long"):
            await responses.create(model="policy", input="7*8?")
        with pytest.raises(openai.NotFoundError, match="gpt-4o"):
            await responses.create(model="gpt-4o", input="7*8?")

        async def never_again(number: int) -> None:
            if number == 4:
                engine.behave(*[die] * 50)
                raise ConnectionError

        engine.token_gate = never_again
        store.context["engine_wait_seconds"] = 0.2
        store.dead.add("a")
        with pytest.raises(openai.ConflictError):
            await responses.create(model="policy", input="7*8?")
        store.dead.clear()
        stream = await responses.create(model="policy", input="7*8?", stream=True)
        with pytest.raises(openai.APIError, match="no engine answered"):
            await drained(stream)
