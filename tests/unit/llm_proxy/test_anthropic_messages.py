"""Anthropic's Messages API through a gateway that listens, with the official client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
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
MUL: Any = {"name": "mul", "description": "multiplies", "input_schema": {"type": "object", "properties": {}}}
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 5, "messages": [{"role": "user", "content": "7*8?"}]}


@asynccontextmanager
async def agent(tmp_path: Path, suffix: str = "/v1") -> AsyncGenerator[tuple[Any, ScriptedStore, FakeEngine]]:
    """The official client's `messages`, the store and the engine."""
    async with (
        parts(tmp_path) as (client, store, engine),
        anthropic.AsyncAnthropic(base_url=f"{client.base()}{suffix}", api_key=TOKEN) as official,
    ):
        yield official.messages, store, engine


@pytest.mark.parametrize("suffix", ["", "/v1"])
async def test_a_text_is_answered_and_its_tokens_are_recorded(tmp_path: Path, suffix: str):
    async with agent(tmp_path, suffix) as (messages, store, engine):
        asked = {"system": [{"type": "text", "text": "Be brief."}], "extra_body": {"temperature": 0.1}}
        answer = await messages.create(**ASK, **asked)
        await store.until(lambda: store.delivered() == {1: "yes"})
    record = store.calls()[1]
    assert answer.content[0].text == said(record.seed, count=5)
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("max_tokens", len(PROMPT), 4)
    assert record.route == "messages"
    assert record.prompt_token_ids == PROMPT
    assert record.choices[0].response_token_ids == token_ids(record.seed, 0, 5)
    assert record.choices[0].logprobs == [logprob(token) for token in token_ids(record.seed, 0, 5)]
    assert engine.requests[0]["temperature"] == 0.7
    assert engine.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "7*8?"},
    ]


async def test_tool_use_and_its_results_become_the_chat_that_the_model_wrote(tmp_path: Path):
    async with agent(tmp_path) as (messages, _, engine):
        engine.behave(saying(THINKING, "tool_calls"))
        first = await messages.create(**ASK, tools=[MUL], tool_choice={"type": "any"})
        result = {"type": "tool_result", "tool_use_id": "chatcmpl-tool-1", "content": [{"type": "text", "text": "56"}]}
        turns = [
            *ASK["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ]
        await messages.create(**{**ASK, "messages": turns}, tools=[MUL])
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (first.content[2].name, first.content[2].input) == ("mul", {"a": 7, "b": 8})
    assert first.stop_reason == "tool_use"
    assert engine.requests[0]["tool_choice"] == "required"
    assert engine.requests[1]["messages"] == [
        {"role": "user", "content": "7*8?"},
        {"role": "assistant", **THINKING},
        {"role": "tool", "tool_call_id": "chatcmpl-tool-1", "content": "56"},
        {"role": "user", "content": "So?"},
    ]


async def test_events_come_in_the_official_order_and_add_up_to_the_same_message(tmp_path: Path):
    async with agent(tmp_path) as (messages, store, engine):
        engine.behave(*[saying(THINKING, "tool_calls")] * 3)
        whole = await messages.create(**ASK, tools=[MUL])
        events = [event async for event in await messages.create(**ASK, tools=[MUL], stream=True)]
        async with messages.stream(**ASK, tools=[MUL]) as stream:
            helped = await stream.get_final_message()
    kinds = [event.type for event in events]
    shortened = [kind for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert shortened == ["message_start", *block * 4, "message_delta", "message_stop"]
    assert [event.delta.type for event in events if event.type == "content_block_delta"].count("input_json_delta") > 2
    assert events[0].message.usage.input_tokens == len(PROMPT)
    assert [plain(block) for block in helped.content] == [plain(block) for block in whole.content]
    assert (helped.stop_reason, helped.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert store.calls()[2].choices[0].response_token_ids


def plain(block: Any) -> dict[str, Any]:
    """What a block says."""
    return {key: value for key, value in block.model_dump().items() if value is not None}


async def test_the_agents_own_stop_sequence_is_named_and_the_runs_is_not(tmp_path: Path):
    async with agent(tmp_path) as (messages, store, engine):
        store.context["sampling"] |= {"stop": ["STOP"]}
        engine.behave(saying({"content": "a"}, "stop", "END"), saying({"content": "a"}, "stop", "STOP"))
        own = await messages.create(**ASK, stop_sequences=["END"])
        runs = await messages.create(**ASK, stop_sequences=["END"])
    assert (own.stop_reason, own.stop_sequence) == ("stop_sequence", "END")
    assert (runs.stop_reason, runs.stop_sequence) == ("end_turn", None)
    assert engine.requests[0]["stop"] == ["END", "STOP"]


async def test_a_last_turn_of_the_model_is_continued(tmp_path: Path):
    turns = [*ASK["messages"], {"role": "assistant", "content": "The answer is"}]
    async with agent(tmp_path) as (messages, _, engine):
        await messages.create(**{**ASK, "messages": turns})
    assert engine.requests[0]["continue_final_message"] is True
    assert engine.requests[0]["add_generation_prompt"] is False


async def test_arguments_that_are_no_object_survive_the_round_trip(tmp_path: Path):
    for arguments in ("[1]", "{broken", "NaN", '{"a": 123456789012345678901234567890}'):
        async with agent(tmp_path) as (messages, _, engine):
            engine.behave(saying({"tool_calls": [tool_call(1, "mul", arguments)]}, "tool_calls"))
            first = await messages.create(**ASK, tools=[MUL])
            turns = [*ASK["messages"], {"role": "assistant", "content": first.content}]
            await messages.create(**{**ASK, "messages": turns})
        assert engine.requests[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == arguments


async def test_an_undelivered_answer_is_given_again_in_this_dialect(tmp_path: Path):
    async with agent(tmp_path) as (messages, store, engine):
        await messages.create(**ASK)
        async with messages.stream(**ASK) as stream:
            await stream.get_final_message()
        await store.until(lambda: store.delivered() == {1: "yes", 2: "yes"})
        store.marks = {("a", 1): "no", ("a", 2): "no"}
        async with (
            listening_gateway(store) as after,
            anthropic.AsyncAnthropic(base_url=f"{after.base()}/v1", api_key=TOKEN) as official,
        ):
            whole = await official.messages.create(**ASK)
            async with official.messages.stream(**ASK) as stream:
                streamed = await stream.get_final_message()
    assert whole.content[0].text == said(store.calls()[1].seed, count=5)
    assert streamed.content[0].type == "text"
    assert streamed.content[0].text == said(store.calls()[2].seed, count=5)
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [MUL], "tool_choice": {"type": "some"}}, "some"),
        ({"container": "c"}, "container"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(tmp_path: Path, asked: dict[str, Any], named: str):
    async with agent(tmp_path) as (messages, _, engine):
        with pytest.raises(anthropic.BadRequestError, match=named):
            await messages.create(**{**ASK, **asked})
    assert not engine.requests


async def test_errors_have_anthropics_shape_also_during_a_stream(tmp_path: Path):
    async with agent(tmp_path) as (messages, store, engine):
        store.context["engine_wait_seconds"] = 0.2
        engine.behave(status(400, "too long"))
        with pytest.raises(anthropic.BadRequestError, match="too long") as refused:
            await messages.create(**ASK)
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            await messages.create(**{**ASK, "model": "claude"})

        async def never_again(number: int) -> None:
            if number == 3:
                engine.behave(*[die] * 50)
                raise ConnectionError

        engine.token_gate = never_again
        with pytest.raises(anthropic.APIStatusError, match="no engine answered"):
            async with messages.stream(**ASK) as stream:
                await stream.get_final_message()
    assert refused.value.body == {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}


async def test_a_wrong_key_is_refused_in_anthropics_shape(tmp_path: Path):
    async with (
        parts(tmp_path) as (client, _, engine),
        anthropic.AsyncAnthropic(base_url=client.base(), api_key="stolen") as thief,
    ):
        with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
            await thief.messages.create(**ASK)
    assert not engine.requests


async def test_a_prompts_tokens_are_counted_without_a_call(tmp_path: Path):
    asked = {"model": "policy", "messages": ASK["messages"], "system": "Be brief.", "tools": [MUL]}
    async with agent(tmp_path) as (messages, store, engine):
        counted = await messages.count_tokens(**asked)
        await engine.stop()
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
            await messages.count_tokens(**asked)
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            await messages.count_tokens(model="claude", messages=ASK["messages"])
    assert counted.input_tokens == len(PROMPT)
    assert [message["role"] for message in engine.counted[0]["messages"]] == ["system", "user"]
    assert engine.counted[0]["tools"][0]["function"]["name"] == "mul"
    assert not engine.requests
    assert not store.failures
