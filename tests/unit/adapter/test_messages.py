"""Spans to conversations: no tool call is lost, whichever library recorded it."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.adapter import TraceToMessages
from relight.types.tracer import Span

CHAT = "openai.chat.completion"
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "rooms", "arguments": '{"at": "16:30"}'}},
    {"id": "c2", "type": "function", "function": {"name": "rooms", "arguments": "{}"}},
]
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A room?"}]


def span(number: int, attributes: dict[str, Any], name: str = CHAT, parent: str | None = None) -> Span:
    return Span(
        rollout_id="r",
        attempt_id="a",
        sequence_id=number,
        trace_id=f"t{number}",
        span_id=f"s{number}",
        parent_id=parent,
        name=name,
        attributes=attributes,
    )


def flat(prefix: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """As OpenLLMetry writes messages."""
    found: dict[str, Any] = {}
    for index, message in enumerate(messages):
        calls = message.get("tool_calls", [])
        found |= {f"{prefix}.{index}.{key}": value for key, value in message.items() if key != "tool_calls"}
        for position, call in enumerate(calls):
            known = {"id": call["id"], **call["function"]}
            found |= {f"{prefix}.{index}.tool_calls.{position}.{key}": value for key, value in known.items()}
    return {key: value for key, value in found.items() if value is not None}


def tool(number: int, call: dict[str, Any], parent: str) -> Span:
    function = call["function"]
    known = {"tool.name": function["name"], "tool.parameters": function["arguments"], "tool.call.id": call["id"]}
    return span(number, {**known, "tool.call.type": "function"}, "tool_call.rooms", parent)


def turn(*answered: dict[str, Any]) -> list[dict[str, Any]]:
    """What is asked after the model called both functions."""
    called = {"role": "assistant", "content": None, "tool_calls": CALLS}
    results = [{"role": "tool", "content": "free", "tool_call_id": call["id"]} for call in CALLS]
    return [*ASKED, called, *results, *answered]


def test_a_conversation_with_parallel_tool_calls_is_read_turn_by_turn() -> None:
    answer = {"role": "assistant", "content": "Nova."}
    declared = {"name": "rooms", "description": "Free rooms.", "parameters": '{"type": "object"}'}
    first = flat("gen_ai.prompt", ASKED) | {"gen_ai.completion.0.role": "assistant"}
    first |= {f"gen_ai.request.functions.0.{key}": value for key, value in declared.items()}
    second = flat("gen_ai.prompt", turn()) | flat("gen_ai.completion", [answer])
    spans = [tool(1, CALLS[0], "s3"), tool(2, CALLS[1], "s3"), span(3, first), span(4, second), span(5, {}, "work")]
    function = {"name": "rooms", "description": "Free rooms.", "parameters": {"type": "object"}}
    assert TraceToMessages().adapt(spans) == [
        {
            "messages": [*ASKED, {"role": "assistant", "content": None, "tool_calls": CALLS}],
            "tools": [{"type": "function", "function": function}],
        },
        {"messages": turn(answer), "tools": None},
    ]


def test_tool_spans_at_any_depth_belong_to_the_nearest_model_call_above() -> None:
    asked = flat("gen_ai.prompt", ASKED) | {"gen_ai.completion.0.role": "assistant"}
    spans = [
        span(1, asked),
        span(2, {}, "langchain", "s1"),
        tool(3, CALLS[0], "s2"),
        span(4, asked, parent="s2"),
        tool(5, CALLS[1], "s4"),
    ]
    outer, inner = TraceToMessages().adapt(spans)
    assert outer["messages"][-1]["tool_calls"] == CALLS[:1]
    assert inner["messages"][-1]["tool_calls"] == CALLS[1:]


@pytest.mark.parametrize("kind", ["opentelemetry", "openinference", "weave"])
def test_other_conventions_give_the_same_messages(kind: str) -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": CALLS[:1]}
    if kind == "opentelemetry":
        parts = [{"role": one["role"], "parts": [{"type": "text", "content": one["content"]}]} for one in ASKED]
        said = [{"role": "assistant", "tool_calls": CALLS[:1]}]
        attributes: dict[str, Any] = {
            "gen_ai.input.messages": orjson.dumps(parts).decode(),
            "gen_ai.output.messages": orjson.dumps(said).decode(),
        }
    elif kind == "openinference":
        attributes = {f"llm.input_messages.{i}.message.{key}": one[key] for i, one in enumerate(ASKED) for key in one}
        start = "llm.output_messages.0.message"
        attributes |= {f"{start}.role": "assistant", f"{start}.tool_calls.0.tool_call.id": "c1"}
        attributes |= {
            f"{start}.tool_calls.0.tool_call.function.{key}": CALLS[0]["function"][key] for key in ("name", "arguments")
        }
    else:
        start = "agentlightning.operation"
        attributes = {f"{start}.input.messages.{i}.{key}": one[key] for i, one in enumerate(ASKED) for key in one}
        start = f"{start}.output.choices.0.message"
        attributes |= {f"{start}.role": "assistant", f"{start}.tool_calls.0.id": "c1"}
        attributes |= {
            f"{start}.tool_calls.0.function.{key}": CALLS[0]["function"][key] for key in ("name", "arguments")
        }
    assert TraceToMessages().adapt([span(1, attributes)]) == [{"messages": [*ASKED, answer], "tools": None}]


def test_a_missing_role_is_implied_by_the_other_fields_or_the_message_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = [{key: value for key, value in one.items() if key != "role"} for one in turn()[2:]]
    attributes = flat("gen_ai.prompt", [*ASKED, *messages, {"noise": "?"}])
    with caplog.at_level(logging.WARNING):
        [read] = TraceToMessages().adapt([span(1, attributes)])
    assert read["messages"] == turn()
    assert "a message of span s1 was left out: it has no role, and its keys imply none: noise" in caplog.text


values = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
keys = st.lists(
    st.sampled_from(["gen_ai", "prompt", "completion", "0", "1", "role", "tool_calls", "content", "tool", "name"]),
    min_size=1,
    max_size=5,
).map(".".join)


@given(st.lists(st.tuples(st.dictionaries(keys, values, max_size=8), st.integers(0, 3)), max_size=4))
def test_no_attributes_raise(given_: list[tuple[dict[str, Any], int]]) -> None:
    spans = [
        span(number, attributes, parent=f"s{parent}" if parent else None)
        for number, (attributes, parent) in enumerate(given_)
    ]
    for call in TraceToMessages().adapt(spans):
        assert all(message["role"] for message in call["messages"])
