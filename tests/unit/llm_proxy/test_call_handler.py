"""A model call through a gateway that listens, with a scripted engine and a scripted store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from relight.llm_proxy.limits import GatewayLimits
from relight.llm_proxy.requests import seed_for
from tests.support.fake_engine import PROMPT, die, fake_engine, logprob, status, token_ids
from tests.support.gateway import ADMIN, TOKEN, listening_gateway
from tests.support.orchestration import eventually
from tests.unit.llm_proxy.parts import content_of, parts, said


async def test_a_call_is_recorded_with_its_tokens_before_the_agent_has_the_answer(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.commit_gate.clear()
        answering = asyncio.create_task(client.call())
        await store.until(lambda: bool(engine.requests))
        await asyncio.wait([answering], timeout=0.2)
        assert not answering.done()
        store.commit_gate.set()
        code, answer = await answering
        await store.until(lambda: store.delivered() == {1: "yes"})
    seed = seed_for("7/1/0/0/1", 1)
    assert code == 200
    assert content_of(answer) == said(seed)
    record = store.calls()[1]
    assert record.prompt_token_ids == PROMPT
    assert record.choices[0].response_token_ids == token_ids(seed, 0, 8)
    assert record.choices[0].logprobs == [logprob(token) for token in token_ids(seed, 0, 8)]
    assert (record.seed, record.engine_id, record.model) == (seed, "e1", "policy")
    assert record.duration_seconds > 0


async def test_the_agent_gets_no_more_than_it_requested(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        _, plain = await client.call()
        _, asked = await client.call(logprobs=True, return_token_ids=True)
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    assert plain["choices"][0]["logprobs"] is None
    assert asked["prompt_token_ids"] == PROMPT
    assert len(asked["choices"][0]["logprobs"]["content"]) == 8
    assert store.calls()[1].response == plain


async def test_several_choices_are_one_record_with_each_choices_tokens(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        _, answer = await client.call(n=3)
    record = store.calls()[1]
    assert [choice.response_token_ids for choice in record.choices] == [token_ids(record.seed, n, 8) for n in range(3)]
    assert [content_of(answer, n) for n in range(3)] == [said(record.seed, n) for n in range(3)]


async def test_text_completions_are_captured_too(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        code, answer = await client.call(body={"prompt": "7*8?"}, route="completions")
        code_logprobs, asked = await client.call(body={"prompt": "7*8?", "logprobs": 0}, route="completions")
    assert (code, code_logprobs) == (200, 200)
    assert answer["choices"][0]["logprobs"] is None
    assert asked["choices"][0]["logprobs"] is not None
    record = store.calls()[1]
    assert record.prompt_token_ids == PROMPT
    assert record.choices[0].logprobs == [logprob(token) for token in token_ids(record.seed, 0, 8)]


async def test_an_engine_that_dies_is_waited_for_and_the_call_repeated_with_its_seed(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.behave(die)
        answering = asyncio.create_task(client.call())
        await engine.arrived.wait()
        await engine.stop()
        lists = store.lists
        await store.until(lambda: store.lists > lists)
        assert (await client.status())["waiting"]
        await engine.start()
        code, answer = await answering
        status_after = await client.status()
    assert code == 200
    assert [request["seed"] for request in engine.requests] == [seed_for("7/1/0/0/1", 1)] * 2
    assert content_of(answer) == said(engine.requests[0]["seed"])
    assert list(store.calls()) == [1]
    assert not status_after["waiting"]
    assert status_after["waited_seconds"] > 0
    assert not status_after["platform_failure"]


async def test_the_time_that_an_engine_took_to_die_counts_as_waiting(tmp_path: Path):
    async with parts(tmp_path) as (client, _, engine):

        async def die_slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await asyncio.sleep(0.3)  # this is the time that is to be counted
            return await die(request, body)

        engine.behave(die_slowly)
        code, _ = await client.call()
        assert (await client.status())["waited_seconds"] >= 0.3
    assert code == 200


async def test_a_call_waits_until_an_engine_acknowledges_a_version_that_its_step_allows(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.context |= {"min_version": 3, "max_version": 3}
        answering = asyncio.create_task(client.call())
        await store.until(lambda: store.lists > 1)
        assert (await client.status())["waiting"]
        assert not engine.requests
        store.has_engine(engine.url, version=3)
        code, _ = await answering
    assert code == 200


async def test_an_engine_that_stays_down_is_recorded_as_a_platform_failure_before_the_answer(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.context["engine_wait_seconds"] = 0.2
        await engine.stop()
        code, answer = await client.call()
        assert [failure.call_number for failure in store.failures] == [1]
        assert (await client.status())["platform_failure"]
        await engine.start()
        retried, _ = await client.call(retry=1)
        assert not (await client.status())["platform_failure"]
    assert (code, retried) == (503, 200)
    assert answer["error"]["code"] == "platform_unavailable"
    assert store.calls()[1].request_hash == store.failures[0].request_hash
    assert store.calls()[1].seed == seed_for("7/1/0/0/1", 1)


async def test_an_engines_error_for_a_bad_request_reaches_the_agent_and_fails_no_attempt(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.behave(status(400, 'too long\n\n  File "/x/serving.py", line 40, in create'))
        code, answer = await client.call()
    assert code == 400
    assert answer["error"]["message"] == "too long"
    assert not store.failures
    assert not store.records


async def test_a_call_of_an_attempt_that_has_just_been_superseded_is_a_conflict(tmp_path: Path):
    async with parts(tmp_path, limits=GatewayLimits(ended_seconds=3600)) as (client, store, engine):
        await client.call()
        store.dead.add("a")
        at_commit, answer = await client.call()
        at_resolve, _ = await client.call()
    assert (at_commit, at_resolve) == (409, 409)
    assert len(engine.requests) == 2
    assert answer["error"]["code"] == "attempt_superseded"
    assert list(store.calls()) == [1]


async def test_an_attempt_that_ended_is_soon_refused_before_anything_is_sampled(tmp_path: Path):
    async with parts(tmp_path, limits=GatewayLimits(ended_seconds=0.05)) as (client, store, engine):
        for attempt in ("a", "b"):
            await client.call(attempt=attempt)
        store.dead.add("a")

        async def forgotten() -> bool:
            return (await client.status())["calls"] == 0

        await eventually(forgotten)
        code, answer = await client.call()
        assert (await client.call(attempt="b"))[0] == 200
    assert (code, answer["error"]["code"]) == (409, "attempt_superseded")
    assert len(engine.requests) == 3
    assert [request.attempt_id for request in store.resolved] == ["a", "b", "a"]


async def test_a_wrong_key_is_refused_whether_the_attempt_is_known_or_not(tmp_path: Path):
    async with parts(tmp_path) as (client, _, engine):
        for _ in range(2):
            async with client.session.post(
                f"{client.base()}/v1/chat/completions",
                json={"messages": []},
                headers={"authorization": "Bearer stolen"},
            ) as response:
                assert response.status == 401
            await client.call()
    assert len(engine.requests) == 2


async def test_sixty_four_calls_at_once_share_few_commits(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        answers = await asyncio.gather(*(client.call(attempt=f"a{n % 8}") for n in range(64)))
        await store.until(lambda: len(store.marks) == 64)
    assert {code for code, _ in answers} == {200}
    assert sorted(store.records) == sorted((f"a{n}", call) for n in range(8) for call in range(1, 9))
    assert sum(store.batches) == 64
    assert len(store.batches) <= 32
    assert len(store.resolved) == 8


async def test_the_store_may_be_down_for_a_while(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        await client.call()
        store.away = True
        answering = asyncio.create_task(client.call())
        await store.until(lambda: store.turned_away > 2)
        assert (await client.status())["waiting"]
        store.away = False
        code, _ = await answering
        await store.until(lambda: store.delivered() == {1: "yes", 2: "yes"})
    assert code == 200


async def test_a_call_number_that_another_gateway_took_is_replaced(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _), listening_gateway(store) as other:
        await client.call()
        await other.call(messages=["from elsewhere"])
        code, _ = await client.call(messages=["x"])
    assert code == 200
    assert list(store.calls()) == [1, 2, 3]


async def test_status_needs_the_admins_or_the_attempts_key(tmp_path: Path):
    async with parts(tmp_path) as (client, _, _):
        assert (await client.status(token="stolen"))["error"]["code"] == "invalid_api_key"
        assert (await client.status(token=ADMIN))["calls"] == 0
        await client.call()
        assert (await client.status(token=TOKEN))["calls"] == 1


async def test_an_idle_engine_is_chosen_before_a_busy_one(tmp_path: Path):
    async with parts(tmp_path) as (client, store, first), fake_engine(tmp_path / "e2.sock") as second:
        store.has_engine(second.url, engine_id="e2")
        await asyncio.gather(*(client.call() for _ in range(16)))
    assert len(first.requests) == len(second.requests) == 8


async def test_a_stream_whose_engine_dies_continues_at_another_one_with_an_allowed_version(tmp_path: Path):
    async with (
        parts(tmp_path) as (client, store, first),
        fake_engine(tmp_path / "e2.sock") as second,
        fake_engine(tmp_path / "e3.sock") as newer,
    ):
        store.has_engine(newer.url, version=1, engine_id="e3")
        store.has_engine(second.url, engine_id="e2")

        async def dies(number: int) -> None:
            if number == 4:
                raise ConnectionError

        first.token_gate = dies
        async with client.post(stream=True) as response:
            events = (await response.read()).decode().split("\n\n")
    deltas = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(delta["choices"][0]["delta"].get("content", "") for delta in deltas)
    assert text == said(store.calls()[1].seed)
    assert store.calls()[1].engine_id == "e2"
    assert [len(engine.requests) for engine in (first, second, newer)] == [1, 1, 0]
