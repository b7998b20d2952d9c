"""Emitters: what they write, and that it can be read back."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Generator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.emitter import (
    EmittedSpan,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_reward_values,
    is_reward_span,
    make_link_attributes,
    make_tag_attributes,
    operation,
)
from relight.emitter.attributes import flatten
from relight.emitter.recorder import Scope, set_context_scope, set_process_scope
from relight.types.wire import SpanRecord

TRACE = "0" * 32


@pytest.fixture
def sent() -> Generator[list[EmittedSpan]]:
    spans: list[EmittedSpan] = []
    set_process_scope(Scope(TRACE, spans.append))
    yield spans
    set_process_scope(None)


def test_a_reward_is_an_annotation_that_0_3_reads(sent: list[EmittedSpan]) -> None:
    emit_reward(1)
    assert sent[0]["name"] == "agentlightning.annotation"
    assert sent[0]["attributes"] == {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    assert (sent[0]["trace_id"], sent[0]["parent_id"], sent[0]["status"]) == (TRACE, None, "OK")


def test_named_rewards_put_the_primary_one_first(sent: list[EmittedSpan]) -> None:
    emit_reward({"speed": 0.5, "exact": True}, primary_key="exact", attributes=make_tag_attributes(["fast"]))
    assert get_reward_values(sent[0]) == {"exact": 1.0, "speed": 0.5}
    assert get_reward_value(sent[0]) == 1.0
    assert sent[0]["attributes"]["agentlightning.tag.0"] == "fast"


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1", None, {"a": math.nan}, {"a": "x"}])
def test_what_is_no_finite_number_is_refused(sent: list[EmittedSpan], reward: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        emit_reward(reward, primary_key="a")
    assert sent == []


def test_named_rewards_need_a_primary_key_that_is_among_them() -> None:
    with pytest.raises(ValueError, match="needs primary_key"):
        emit_reward({"a": 1.0})
    with pytest.raises(ValueError, match="'b' is not among the rewards"):
        emit_reward({"a": 1.0}, primary_key="b")


def test_the_last_reward_counts(sent: list[EmittedSpan]) -> None:
    emit_reward(0.1)
    emit_message("between")
    emit_reward(0.9)
    emit_annotation({"note": "after"})
    assert len(find_reward_spans(sent)) == 2
    assert find_final_reward(sent) == 0.9
    assert find_final_reward([]) is None
    assert not is_reward_span(sent[1])


def test_outside_of_an_attempt_a_span_is_made_and_goes_nowhere() -> None:
    span = emit_message("hello", {"nested": {"key": 1}})
    assert get_message_value(span) == "hello"
    assert span["attributes"]["nested.key"] == 1


def test_a_span_that_is_not_to_be_sent_is_not(sent: list[EmittedSpan]) -> None:
    assert emit_reward(1.0, propagate=False)["name"]
    assert sent == []


@pytest.mark.parametrize("value", ["text", 5, 2.5, True, False, b"\x00\xff", {"a": [1, {"b": None}]}, [1, 2]])
def test_an_object_can_be_read_back(sent: list[EmittedSpan], value: Any) -> None:
    emit_object(value)
    assert sent[0]["name"] == "agentlightning.object"
    read = get_object_value(sent[0])
    assert read == value
    assert type(read) is type(value)


def test_an_object_without_json_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not object"):
        emit_object(object())


def test_an_exception_keeps_its_stack(sent: list[EmittedSpan]) -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        emit_exception(error)
    attributes = sent[0]["attributes"]
    assert sent[0]["name"] == "agentlightning.exception"
    assert attributes["exception.type"] == "KeyError"
    assert "test_an_exception_keeps_its_stack" in attributes["exception.stacktrace"]


def test_links_have_0_3s_form() -> None:
    assert make_link_attributes({"gen_ai.response.id": "r-1"}) == {
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "r-1",
    }


def test_an_operation_is_the_parent_of_what_is_emitted_in_it(sent: list[EmittedSpan]) -> None:
    with operation(name="outer", kind="search") as outer:
        outer.set_input(1, query="x")
        with operation():
            emit_message("inside")
        outer.set_output({"hits": 3})
    inside, inner, last = sent
    assert inside["parent_id"] == inner["span_id"]
    assert inner["parent_id"] == last["span_id"]
    assert last["attributes"] == {
        "kind": "search",
        "agentlightning.operation.name": "outer",
        "agentlightning.operation.input.args": [1],
        "agentlightning.operation.input.query": "x",
        "agentlightning.operation.output.hits": 3,
    }
    assert last["end_time"] is not None
    assert last["end_time"] >= last["start_time"]
    assert outer.span() is last


def test_an_operation_that_raises_is_an_error(sent: list[EmittedSpan]) -> None:
    with pytest.raises(ValueError, match="no"), operation():
        raise ValueError("no")
    assert (sent[0]["status"], sent[0]["status_description"]) == ("ERROR", "ValueError: no")
    assert sent[0]["events"][0]["attributes"]["exception.type"] == "ValueError"


def test_a_decorated_function_notes_its_arguments_and_its_result(sent: list[EmittedSpan]) -> None:
    @operation
    def add(first: int, *rest: int, scale: int = 1) -> int:
        return scale * sum((first, *rest))

    assert add(1, 2, 3, scale=2) == 12
    assert sent[0]["attributes"] == {
        "agentlightning.operation.name": "add",
        "agentlightning.operation.input.first": 1,
        "agentlightning.operation.input.rest": [2, 3],
        "agentlightning.operation.input.scale": 2,
        "agentlightning.operation.output": 12,
    }
    with pytest.raises(TypeError):
        add()  # type: ignore[call-arg]


async def test_decorated_coroutines_keep_their_spans_apart(sent: list[EmittedSpan]) -> None:
    @operation(name="wait")
    async def wait(number: int) -> int:
        await asyncio.sleep(0)
        emit_message(str(number))
        await asyncio.sleep(0)
        return number

    assert await asyncio.gather(*(wait(n) for n in range(5))) == list(range(5))
    outputs = {
        s["span_id"]: s["attributes"]["agentlightning.operation.output"]
        for s in sent
        if s["name"].endswith("operation")
    }
    for span in sent:
        if span["name"].endswith("message"):
            assert str(outputs[span["parent_id"] or ""]) == get_message_value(span)


async def test_contexts_keep_attempts_apart_and_threads_of_the_process_find_its_scope(sent: list[EmittedSpan]) -> None:
    async def attempt(spans: list[EmittedSpan], text: str) -> None:
        set_context_scope(Scope(text, spans.append))
        await asyncio.sleep(0)
        await asyncio.to_thread(emit_message, text)

    one: list[EmittedSpan] = []
    two: list[EmittedSpan] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(attempt(one, "one"))
        group.create_task(attempt(two, "two"))
    assert [span["trace_id"] for span in one + two] == ["one", "two"]
    thread = threading.Thread(target=emit_message, args=("plain thread",))
    thread.start()
    thread.join()
    assert [get_message_value(span) for span in sent] == ["plain thread"]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=9), anything, max_size=3))
@settings(deadline=None)
def test_any_value_becomes_attributes_that_the_wire_and_postgres_take(value: dict[str, Any]) -> None:
    span = emit_annotation(value)
    raw = orjson.dumps(span)
    SpanRecord.model_validate_json(raw)
    assert b"\\u0000" not in raw.replace(rb"\\", b"")  # a backslash that was said is no escape
    for attribute in span["attributes"].values():
        assert isinstance(attribute, str | bool | int | float | list)


def test_what_is_endless_or_huge_is_cut() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert len(flatten(endless)) == 1
    assert len(flatten({str(n): n for n in range(10_000)})) == 2048
    assert len(flatten({"a": "x" * 1_000_000})["a"]) < 300_000
