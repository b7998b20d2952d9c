"""Emitters: what they write, and that it can be read back."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from enum import IntEnum
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.emitter import (
    EmittedSpan,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_reward_values,
    get_rewards_from_span,
    is_reward_span,
    make_link_attributes,
    make_tag_attributes,
    operation,
    query_linked_spans,
)
from relight.emitter.attributes import flatten, unflatten
from relight.emitter.scope import Scope, set_context_scope, set_process_scope
from relight.types.wire import SpanRecord

TRACE = "0" * 32


@pytest.fixture
def sent() -> Generator[list[EmittedSpan]]:
    spans: list[EmittedSpan] = []
    set_process_scope(Scope(TRACE, spans.append))
    yield spans
    set_process_scope(None)


def test_a_reward_is_an_annotation_in_the_form_of_0_3(sent: list[EmittedSpan]) -> None:
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


def test_the_rewards_of_a_span_are_listed_with_their_names(sent: list[EmittedSpan]) -> None:
    emit_reward({"speed": 0.5, "exact": 1.0}, primary_key="exact")
    emit_message("no reward")
    assert [(reward.name, reward.value) for reward in get_rewards_from_span(sent[0])] == [
        ("exact", 1.0),
        ("speed", 0.5),
    ]
    assert get_rewards_from_span(sent[1]) == []


def test_the_last_reward_counts(sent: list[EmittedSpan]) -> None:
    emit_reward(0.1)
    emit_message("between")
    emit_reward(0.9)
    emit_annotation({"note": "after"})
    assert len(find_reward_spans(sent)) == 2
    assert find_final_reward(sent) == 0.9
    assert find_final_reward([]) is None
    assert not is_reward_span(sent[1])


def test_outside_of_an_attempt_a_span_is_made_and_not_sent() -> None:
    span = emit_message("hello", {"nested": {"key": 1}})
    assert get_message_value(span) == "hello"
    assert span.attributes["nested.key"] == 1


def test_a_span_with_propagate_off_is_not_sent(sent: list[EmittedSpan]) -> None:
    assert emit_reward(1.0, propagate=False).name
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
    assert (outer.span().name, outer.span().attributes) == (last["name"], last["attributes"])


def test_an_operation_that_raises_is_an_error(sent: list[EmittedSpan]) -> None:
    with pytest.raises(ValueError, match="no"), operation():
        raise ValueError("no")
    assert (sent[0]["status"], sent[0]["status_description"]) == ("ERROR", "no")
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


def test_a_generators_span_lasts_until_its_end_and_holds_what_it_yielded(sent: list[EmittedSpan]) -> None:
    @operation
    def count(upto: int) -> Generator[int, str, str]:
        for number in range(upto):
            emit_message((yield number) or "nothing")
        return "done"

    def outer() -> Generator[int, str, str]:
        return (yield from count(2))

    steps = outer()
    assert next(steps) == 0
    emit_message("beside")
    assert steps.send("hello") == 1
    with pytest.raises(StopIteration) as end:
        next(steps)
    beside, hello, nothing, whole = sent
    assert end.value.value == "done"
    assert [beside["parent_id"], hello["parent_id"], nothing["parent_id"]] == [None, whole["span_id"], whole["span_id"]]
    assert whole["attributes"]["agentlightning.operation.output"] == [0, 1]
    assert whole["attributes"]["agentlightning.operation.input.upto"] == 2


def test_a_generator_that_raises_or_is_closed_ends_its_span(sent: list[EmittedSpan]) -> None:
    @operation
    def endless() -> Generator[int]:
        try:
            while True:
                yield 1
        finally:
            emit_message("cleaned up")

    closed = endless()
    next(closed)
    closed.close()
    thrown = endless()
    next(thrown)
    with pytest.raises(KeyError):
        thrown.throw(KeyError("lost"))
    assert [span["status"] for span in sent] == ["OK", "OK", "OK", "ERROR"]
    assert [get_message_value(span) for span in sent[::2]] == ["cleaned up"] * 2


async def test_async_generators_and_methods_are_operations(sent: list[EmittedSpan]) -> None:
    class Agent:
        @operation(name="stream")
        async def stream(self, upto: int) -> AsyncGenerator[int]:
            for number in range(upto):
                await asyncio.sleep(0)
                emit_message(str(number))
                yield number

        @operation
        def double(self, number: int) -> int:
            return 2 * number

    agent = Agent()
    async with aclosing(agent.stream(3)) as stream:
        async for number in stream:
            emit_message("between")
            if number == 1:
                break
    assert agent.double(4) == 8
    *_, streamed, doubled = sent
    inside = [span for span in sent if span["parent_id"] == streamed["span_id"]]
    assert [get_message_value(span) for span in inside] == ["0", "1"]
    assert streamed["attributes"]["agentlightning.operation.output"] == [0, 1]
    assert (streamed["attributes"]["agentlightning.operation.name"], streamed["status"]) == ("stream", "OK")
    assert doubled["attributes"]["agentlightning.operation.input.number"] == 4


def test_emitted_spans_may_be_named(sent: list[EmittedSpan]) -> None:
    emit_message("hello", name="greeting")
    emit_annotation({"a": 1}, name="note")
    emit_object([1], name="thing")
    emit_exception(KeyError("lost"), name="failure")
    assert [span["name"] for span in sent] == ["greeting", "note", "thing", "failure"]


async def test_concurrent_decorated_coroutines_have_separate_spans(sent: list[EmittedSpan]) -> None:
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


async def test_contexts_separate_attempts_and_threads_of_the_process_find_its_scope(sent: list[EmittedSpan]) -> None:
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
def test_any_value_becomes_attributes_that_the_wire_and_postgres_take(value: dict[str, Any]) -> None:
    sent: list[EmittedSpan] = []
    set_process_scope(Scope(TRACE, sent.append))
    emit_annotation(value)
    set_process_scope(None)
    [span] = sent
    raw = orjson.dumps(span)
    SpanRecord.model_validate_json(raw)
    assert b"\\u0000" not in raw.replace(rb"\\", b"")  # a backslash that was said is no escape
    for attribute in span["attributes"].values():
        assert isinstance(attribute, str | bool | int | float | list)


def test_integers_of_any_class_stay_integers_where_they_fit() -> None:
    class Level(IntEnum):
        HIGH = 3

    flat = flatten({"level": Level.HIGH, "large": 2**63})
    assert flat == {"level": 3, "large": str(2**63)}
    assert type(flat["level"]) is int


def test_recursive_or_huge_values_are_truncated() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert len(flatten(endless)) == 1
    assert len(flatten({str(n): n for n in range(10_000)})) == 2048
    assert len(flatten({"a": "x" * 1_000_000})["a"]) < 300_000


# Reading attributes again


@given(
    value=st.recursive(
        st.one_of(st.integers(-9, 9), st.booleans(), st.text("ab", max_size=3)),
        lambda below: st.one_of(
            st.lists(below, min_size=1, max_size=3),
            st.dictionaries(st.text("xy", min_size=1), below, min_size=1, max_size=3),
        ),
    )
)
def test_attributes_are_nested_again_as_they_were(value: Any) -> None:
    assert unflatten(flatten({"p": {"v": value}}), "p") == {"v": value}


@given(st.dictionaries(st.lists(st.sampled_from(["p", "a", "0", ""]), max_size=4).map(".".join), st.integers()))
def test_no_keys_of_attributes_are_so_odd_that_nesting_them_raises(attributes: dict[str, int]) -> None:
    assert (unflatten(attributes, "p") is None) == (not any(key.startswith("p.") for key in attributes))


@given(tags=st.lists(st.text()), links=st.dictionaries(st.text(), st.text()))
def test_tags_and_links_are_read_as_they_were_written(tags: list[str], links: dict[str, str]) -> None:
    attributes = make_tag_attributes(tags) | make_link_attributes(links)
    assert extract_tags_from_attributes(attributes) == tags
    assert {link.key_match: link.value_match for link in extract_links_from_attributes(attributes)} == links
    odd = {"agentlightning.tag": 1, "agentlightning.link.0": "x", "agentlightning.link.1.key_match": "only a key"}
    assert extract_tags_from_attributes(odd) == extract_links_from_attributes(odd) == []


def test_links_lead_to_the_spans_that_match_all_of_them(sent: list[EmittedSpan]) -> None:
    for answer in ("one", "two"):
        emit_annotation({"gen_ai.response.id": answer})
    emit_reward(1.0, attributes=make_link_attributes({"gen_ai.response.id": "two", "trace_id": TRACE}))
    links = extract_links_from_attributes(sent[-1]["attributes"])
    assert query_linked_spans(sent, links) == [sent[1]]
    by_id = extract_links_from_attributes(make_link_attributes({"span_id": sent[0]["span_id"]}))
    assert query_linked_spans(sent, by_id) == [sent[0]]
    assert query_linked_spans(sent, [*links, *by_id]) == []
