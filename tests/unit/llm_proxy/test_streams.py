"""Streams: through the gateway as they come, held at their end, captured like any other answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from relight.llm_proxy.streams import Assembly, replay
from tests.support.fake_engine import PROMPT, chunks, fake_engine, logprob, text, token_ids
from tests.unit.llm_proxy.parts import parts, said


async def next_event(response: aiohttp.ClientResponse) -> Any:
    """The next event: a chunk, or None for `[DONE]` and for the end."""
    line = (await response.content.readuntil(b"\n\n")).strip()
    data = line.removeprefix(b"data: ")
    return None if data == b"[DONE]" else orjson.loads(data)


async def rest(response: aiohttp.ClientResponse) -> list[Any]:
    """All events that are left."""
    lines = (await response.read()).strip().split(b"\n\n")
    return [orjson.loads(line.removeprefix(b"data: ")) for line in lines if line != b"data: [DONE]"]


def texts(events: list[Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def test_chunks_pass_as_they_come_and_the_end_waits_for_the_commit(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.commit_gate.clear()
        gate = asyncio.Semaphore(3)  # the role, and two tokens

        async def token_gate(_: int) -> None:
            await gate.acquire()

        engine.token_gate = token_gate
        async with client.post(stream=True) as response:
            seen = [await next_event(response) for _ in range(3)]
            for _ in range(6):
                gate.release()
            seen += [await next_event(response) for _ in range(5)]
            await store.until(lambda: store.committing > 0)
            seed = engine.requests[0]["seed"]
            assert texts(seen) == said(seed, count=7)
            ending = asyncio.create_task(next_event(response))
            await asyncio.wait([ending], timeout=0.2)
            assert not ending.done()
            store.commit_gate.set()
            last = [await ending, *await rest(response)]
        await store.until(lambda: store.delivered() == {1: "yes"})
    assert texts(last) == text(token_ids(seed, 0, 8)[-1])
    assert last[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_stream_is_recorded_like_an_answer_in_one_piece(tmp_path: Path):
    usage = {"include_usage": True}
    async with (
        parts(tmp_path) as (client, store, _),
        client.post(stream=True, n=2, stream_options=usage) as response,
    ):
        events = await rest(response)
    record = store.calls()[1]
    assert record.prompt_token_ids == PROMPT
    for number in range(2):
        tokens = token_ids(record.seed, number, 8)
        assert record.choices[number].response_token_ids == tokens
        assert record.choices[number].logprobs == [logprob(token) for token in tokens]
        assert record.choices[number].complete
        assert record.response["choices"][number]["message"]["content"] == said(record.seed, number)
    assert record.response["usage"]["prompt_tokens"] == 7
    assert "token_ids" not in str(events)


async def test_a_stream_that_the_agent_closes_commits_the_tokens_sent_as_delivered(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        gate = asyncio.Semaphore(4)

        async def token_gate(_: int) -> None:
            await gate.acquire()

        engine.token_gate = token_gate
        async with client.post(stream=True) as response:
            for _ in range(4):
                await next_event(response)
            response.close()
        await engine.aborted.wait()
        await store.until(lambda: bool(store.records))
    record = store.calls()[1]
    assert record.delivered == "yes"
    assert record.choices[0].response_token_ids == token_ids(record.seed, 0, 3)
    assert record.choices[0].finish_reason is None
    assert not record.choices[0].complete
    assert record.response["choices"][0]["message"]["content"] == said(record.seed, count=3)


async def test_an_agent_that_closes_a_stream_before_its_end_mark_counts_as_having_read_it(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        store.commit_gate.clear()
        async with client.post(stream=True) as response:
            for _ in range(8):
                await next_event(response)
            await store.until(lambda: store.committing > 0)
            response.close()
        sent = len(store.marks)
        await asyncio.sleep(0.1)  # for the disconnect to arrive
        store.commit_gate.set()
        await store.until(lambda: len(store.marks) > sent)
    assert store.delivered() == {1: "yes"}
    assert store.calls()[1].choices[0].complete


async def test_each_of_several_choices_is_recorded_as_far_as_it_was_sent(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        gate = asyncio.Semaphore(2 + 2 * 7 + 1)  # two roles, seven tokens each, and the end of the first choice

        async def token_gate(_: int) -> None:
            await gate.acquire()

        engine.token_gate = token_gate
        async with client.post(stream=True, n=2) as response:
            for _ in range(2 + 2 * 7):
                await next_event(response)
            response.close()
        await store.until(lambda: bool(store.records))
    choices = store.calls()[1].choices
    assert [len(choice.response_token_ids or ()) for choice in choices] == [7, 7]
    assert [choice.complete for choice in choices] == [False, False]


async def test_an_engine_that_dies_before_the_first_token_is_waited_for(tmp_path: Path):
    async with parts(tmp_path) as (client, _, engine):

        async def break_after_role(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"data: " + orjson.dumps(chunks(body, True)[0]) + b"\n\n")
            assert request.transport is not None
            request.transport.close()
            return response

        engine.behave(break_after_role)
        async with client.post(stream=True) as response:
            events = await rest(response)
    assert [event["choices"][0]["delta"].get("role") for event in events].count("assistant") == 1
    assert texts(events) == said(engine.requests[0]["seed"])


def breaks_once(at: int) -> Callable[[int], Awaitable[None]]:
    """The engine dies before chunk `at`, the first time."""
    broken: list[int] = []

    async def gate(number: int) -> None:
        if number == at and not broken:
            broken.append(number)
            raise ConnectionResetError

    return gate


async def test_a_stream_continues_where_it_was_when_its_engine_comes_back(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.token_gate = breaks_once(at=9)
        async with client.post(stream=True, n=2) as response:
            events = await rest(response)
        await store.until(lambda: store.delivered() == {1: "yes"})
    record = store.calls()[1]
    assert len(engine.requests) == 2
    assert not store.failures
    for number in range(2):
        of_choice = [event for event in events if event["choices"][0]["index"] == number]
        assert texts(of_choice) == said(record.seed, number)
        assert record.choices[number].response_token_ids == token_ids(record.seed, number, 8)
        assert record.response["choices"][number]["message"]["content"] == said(record.seed, number)


async def test_a_stream_whose_repetition_differs_is_a_failure_of_the_platform_and_ends_with_an_error(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.token_gate = breaks_once(at=4)

        async def samples_otherwise(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            return await engine.stream(request, {**body, "seed": body["seed"] + 1}, True)

        engine.behave(engine.answer, samples_otherwise)
        async with client.post(stream=True) as response:
            events = await rest(response)
            assert len(store.failures) == 1
    assert events[-1]["error"]["code"] == "platform_unavailable"
    assert not store.records


async def test_an_agent_that_disconnects_while_a_stream_is_repeated_has_what_it_was_sent(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.token_gate = breaks_once(at=4)
        repeating = asyncio.Event()

        async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            repeating.set()
            await asyncio.Event().wait()
            raise AssertionError

        engine.behave(engine.answer, hang)
        async with client.post(stream=True) as response:
            for _ in range(4):
                await next_event(response)
            await repeating.wait()
            response.close()
        await store.until(lambda: bool(store.records))
    record = store.calls()[1]
    assert record.choices[0].response_token_ids == token_ids(record.seed, 0, 3)
    assert record.delivered == "yes"


async def test_a_stream_that_ends_without_its_end_mark_is_incomplete(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):

        async def end_midway(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks(body, True)[:4]:
                await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
            return response

        engine.behave(end_midway)
        async with client.post(stream=True) as response:
            events = await rest(response)
    assert len(engine.requests) == 2
    assert texts(events) == said(store.calls()[1].seed)


async def test_a_stream_of_text_completions_is_captured(tmp_path: Path):
    body = {"prompt": [28, 15], "stream": True}
    async with (
        parts(tmp_path) as (client, store, _),
        client.post(body=body, route="completions") as response,
    ):
        events = await rest(response)
    record = store.calls()[1]
    assert record.prompt_token_ids == PROMPT
    assert record.choices[0].response_token_ids == token_ids(record.seed, 0, 8)
    assert "".join(event["choices"][0]["text"] for event in events) == said(record.seed)
    assert record.response["choices"][0]["text"] == said(record.seed)


async def test_another_engine_takes_over_a_call_whose_engine_died(tmp_path: Path):
    async with parts(tmp_path) as (client, store, first), fake_engine(tmp_path / "e2.sock") as second:
        await first.stop()
        store.has_engine(second.url, engine_id="e2")
        async with client.post(stream=True) as response:
            await rest(response)
    assert store.calls()[1].engine_id == "e2"


def test_chunks_put_together_are_the_answer_with_its_tool_calls():
    assembly = Assembly("chat/completions")
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"content": "let me "},
        {"content": "see"},
        {"tool_calls": [{"index": 0, "id": "t1", "type": "function", "function": {"name": "mul", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "7}"}}]},
        {"tool_calls": [{"index": 1, "id": "t2", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    ]
    for delta in deltas:
        assembly.add({"id": "x", "model": "policy", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    assembly.add({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    answer = assembly.answer()
    message = answer["choices"][0]["message"]
    assert message["content"] == "let me see"
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "mul", "arguments": '{"a":7}'},
        {"name": "add", "arguments": "{}"},
    ]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    played = Assembly("chat/completions")
    for chunk in replay(answer):
        played.add(chunk)
    assert played.answer() == answer
