"""Dialects there and back: what the model wrote is what it is shown again, whole or in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relight.llm_proxy import anthropic_request, responses_request
from relight.llm_proxy.anthropic_messages import Messages
from relight.llm_proxy.anthropic_request import RAW_ARGUMENTS
from relight.llm_proxy.dialects import Dialect
from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.requests import prepare
from relight.llm_proxy.responses import Responses
from relight.llm_proxy.streams import replay
from tests.support.examples import examples
from tests.support.fake_dialogue import chunks_of, tool_call, whole_answer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps)
CALLS = st.lists(st.tuples(TEXT, ARGUMENTS), max_size=3).map(
    lambda calls: [tool_call(number, name, arguments) for number, (name, arguments) in enumerate(calls)]
)


@st.composite
def turns(draw: st.DrawFn) -> dict[str, Any]:
    """What a model may write in one turn."""
    message = {"content": draw(st.none() | TEXT), "tool_calls": draw(CALLS), "reasoning": draw(st.none() | TEXT)}
    if not message["content"] and not message["tool_calls"]:
        message["content"] = ""
    return {"role": "assistant"} | {key: value for key, value in message.items() if value not in (None, [])}


def whole(message: dict[str, Any]) -> dict[str, Any]:
    return whole_answer(message, "tool_calls" if message.get("tool_calls") else "stop", None, [1])


def streamed(dialect: Dialect, message: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that a message's chunks amount to."""
    chunks = chunks_of(message, "tool_calls" if message.get("tool_calls") else "stop", None, 1)
    return events_of(b"".join([*map(dialect.chunk, chunks), dialect.end()]))


def events_of(content: bytes) -> list[dict[str, Any]]:
    """Server-sent events, whose names are their types."""
    found: list[dict[str, Any]] = []
    for event in content.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n", 1)
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def same_turn(ours: dict[str, Any], wrote: dict[str, Any]) -> bool:
    """Equal; whitespace within a call's arguments is no difference to a chat template, which gets them parsed."""
    return with_parsed_calls(ours) == with_parsed_calls(wrote)


def with_parsed_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "content": message.get("content"), "tool_calls": calls}


@given(turns())
def test_a_responses_output_sent_back_as_input_is_the_models_turn(wrote: dict[str, Any]):
    output = orjson.loads(Responses().answer(whole(wrote)))["output"]
    (ours,) = responses_request.read_input(None, output)
    assert ours == {"content": None, **wrote}


def one_call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [tool_call(0, "look_up", json.dumps(arguments))]}


@given(turns())
@example(one_call({RAW_ARGUMENTS: None}))
@example(one_call({RAW_ARGUMENTS: "a text"}))
@example(one_call({RAW_ARGUMENTS: {RAW_ARGUMENTS: "a text"}}))
def test_a_messages_content_sent_back_is_the_models_turn(wrote: dict[str, Any]):
    content = orjson.loads(Messages().answer(whole(wrote)))["content"]
    (ours,) = anthropic_request.read_messages({"messages": [{"role": "assistant", "content": content}]})
    assert same_turn(ours, wrote)


@settings(max_examples=examples(50))
@given(turns())
def test_a_responses_stream_adds_up_to_its_answer(wrote: dict[str, Any]):
    events = streamed(Responses(), wrote)
    assert events[-1]["response"] == orjson.loads(Responses().answer(whole(wrote)))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas: dict[str, str] = {}
    for event in events:
        if "item_id" in event:
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event.get("delta", "")
    items = events[-1]["response"]["output"]
    assert list(deltas.values()) == [item.get("arguments", text_of(item)) for item in items]


def text_of(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item.get("content", []))


@settings(max_examples=examples(50))
@given(turns())
def test_a_messages_stream_adds_up_to_its_answer(wrote: dict[str, Any]):
    answer = orjson.loads(Messages().answer(whole(wrote)))
    events = streamed(Messages(), wrote)
    blocks: list[dict[str, Any]] = []
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"partial": ""})
        elif event["type"] == "content_block_delta":
            kind, _, delta = event["delta"].pop("type").partition("_")
            (name,) = event["delta"]
            field = "partial" if name == "partial_json" else name
            blocks[event["index"]][field] += event["delta"][name]
            assert (kind, delta) in {("text", "delta"), ("thinking", "delta"), ("input", "json_delta")}
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["partial"])
        del block["partial"]
    assert blocks == answer["content"]
    assert events[-2]["delta"]["stop_reason"] == answer["stop_reason"]
    assert events[-1] == {"type": "message_stop"}


@given(turns(), st.sampled_from([Responses, Messages]))
def test_a_stored_answer_streams_as_it_is_shown_whole(wrote: dict[str, Any], kind: type[Dialect]):
    dialect = kind()
    events = events_of(b"".join([*map(dialect.chunk, replay(whole(wrote))), dialect.end()]))
    if kind is Responses:
        assert events[-1]["response"] == orjson.loads(Responses().answer(whole(wrote)))
    else:
        assert events[-2]["delta"]["stop_reason"] == orjson.loads(Messages().answer(whole(wrote)))["stop_reason"]


@given(st.lists(TEXT, min_size=1, max_size=4), turns())
def test_messages_of_users_and_tools_come_through_in_order(texts: list[str], wrote: dict[str, Any]):
    users = [{"role": "user", "content": text} for text in texts]
    output = orjson.loads(Responses().answer(whole(wrote)))["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": item["name"]}
        for item in output
        if item["type"] == "function_call"
    ]
    read = responses_request.read_input(None, [*users, *output, *results, *users])
    tools = [{"role": "tool", "tool_call_id": result["call_id"], "content": result["output"]} for result in results]
    assert read == [*users, {"content": None, **wrote}, *tools, *users]


NAMES = st.sampled_from(
    [
        *("type", "role", "content", "text", "input", "messages", "tools", "tool_choice", "system", "output", "name"),
        *("arguments", "call_id", "source", "format", "reasoning", "stop_sequences", "include", "instructions"),
        *("stream", "max_tokens", "max_output_tokens", "temperature", "logit_bias", "stop", "top_logprobs", "model"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", [Responses, Messages])
@given(asked=st.dictionaries(NAMES, VALUES, max_size=8))
def test_any_request_is_read_or_refused(kind: type[Dialect], asked: dict[str, Any]):
    try:
        body = kind().read(asked)
        prepared = prepare("chat/completions", body, str(body.get("model")), {"stop": ["x"]}, True)
    except RequestError:
        return  # any other error would be the platform's
    assert isinstance(prepared.body["messages"], list)
    orjson.dumps(prepared.body)


def test_parts_of_a_message_become_chats_own() -> None:
    image = {"type": "input_image", "image_url": "http://x/y.png", "detail": "low"}
    item = {"role": "user", "content": [{"type": "input_text", "text": "look"}, image]}
    (message,) = responses_request.read_input(None, [item])
    assert list(shapes(message["content"])) == ["text", "image_url"]
    blocks = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}}]
    (message,) = anthropic_request.read_messages({"messages": [{"role": "user", "content": blocks}]})
    assert message["content"][0]["image_url"]["url"] == "data:image/png;base64,QQ=="


def shapes(parts: list[dict[str, Any]]) -> Iterator[str]:
    return (part["type"] for part in parts)
