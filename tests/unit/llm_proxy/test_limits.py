"""How large and how long a call may be, and engines that freeze."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import web

from relight.llm_proxy.limits import GatewayLimits
from tests.support.fake_engine import Behaviour, fake_engine
from tests.support.gateway import TOKEN, ScriptedStore, listening_gateway
from tests.support.orchestration import eventually
from tests.unit.llm_proxy.parts import content_of, said

ASK: Any = {"model": "policy", "max_tokens": 5, "messages": [{"role": "user", "content": "7*8?"}]}


async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """An engine that samples for ever."""
    await asyncio.Event().wait()
    raise AssertionError


def hang_after(reached: asyncio.Semaphore) -> Behaviour:
    """The same, and it says when a request has reached it."""

    async def reach(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reached.release()
        return await hang(request, body)

    return reach


async def test_a_request_that_is_too_long_is_refused(tmp_path: Path):
    store = ScriptedStore()
    async with listening_gateway(store, limits=GatewayLimits(request_bytes=50)) as client:
        code, answer = await client.call(messages=["x" * 50])
    assert (code, answer["error"]["code"]) == (413, "request_too_large")


async def test_a_wrong_key_is_refused_before_the_body_comes(tmp_path: Path):
    async with listening_gateway(ScriptedStore()) as client:
        host, port = client.origin.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = "/rollout/ro/attempt/a/v1/chat/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer no\r\ncontent-length: 1000000\r\n\r\n"
        writer.write(head.encode())
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()


async def test_a_call_with_two_keys_is_refused(tmp_path: Path):
    keys = [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer no")]
    async with listening_gateway(ScriptedStore()) as client:
        request = client.session.post(f"{client.base()}/v1/chat/completions", json=ASK, headers=keys)
        async with request as response:
            answer = await response.json()
    assert (response.status, answer["error"]["message"]) == (400, "authorization: two headers came; send one")


async def test_an_attempt_has_a_limit_on_its_calls_at_once_and_others_are_served_beside_it(tmp_path: Path):
    store = ScriptedStore()
    async with (
        fake_engine(tmp_path / "e.sock") as engine,
        listening_gateway(store, limits=GatewayLimits(attempt_calls=2)) as client,
    ):

        async def served() -> bool:
            return (await client.call())[0] == 200

        store.has_engine(engine.url)
        reached = asyncio.Semaphore(0)
        engine.behave(hang_after(reached), hang_after(reached))
        hanging = [asyncio.create_task(client.call(seed_of_the_agent=number)) for number in range(2)]
        await reached.acquire()
        await reached.acquire()
        async with client.post() as response:
            code, answer = response.status, await response.json()
            assert "x-should-retry" not in response.headers
        other, _ = await client.call(attempt="b")
        for call in hanging:
            call.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await eventually(served)  # once the gateway has seen that its clients are gone
    assert (code, answer["error"]["code"], other) == (429, "rate_limit_exceeded", 200)


@pytest.mark.parametrize(("limits", "status"), [({"attempt_bytes": 100}, 429), ({"total_bytes": 100}, 503)])
async def test_requests_are_held_within_a_limit_for_each_attempt_and_for_all(
    tmp_path: Path, limits: dict[str, int], status: int
):
    store = ScriptedStore()
    async with (
        fake_engine(tmp_path / "e.sock") as engine,
        listening_gateway(store, limits=GatewayLimits(**limits)) as client,
    ):

        async def served() -> bool:
            return (await client.call())[0] == 200

        store.has_engine(engine.url)
        reached = asyncio.Semaphore(0)
        engine.behave(hang_after(reached))
        first = asyncio.create_task(client.call())
        await reached.acquire()
        second, _ = await client.call()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(served)  # once the gateway has seen that its client is gone
    assert second == status
    assert not store.failures


async def test_an_answer_that_is_too_long_is_refused_whole_and_streamed(tmp_path: Path):
    store = ScriptedStore()
    async with (
        fake_engine(tmp_path / "e.sock") as engine,
        listening_gateway(store, limits=GatewayLimits(answer_bytes=3000)) as client,
        anthropic.AsyncAnthropic(base_url=client.base(), api_key=TOKEN) as official,
    ):
        store.has_engine(engine.url)
        store.context["sampling"] = {"temperature": 1.0}
        small, _ = await client.call(max_tokens=4)
        code, answer = await client.call(max_tokens=60)
        with pytest.raises(anthropic.APIStatusError, match="longer than 3000 bytes"):
            await official.messages.create(**{**ASK, "max_tokens": 60})
        with pytest.raises(anthropic.APIStatusError, match="longer than 3000 bytes"):
            async with official.messages.stream(**{**ASK, "max_tokens": 60}) as stream:
                await stream.get_final_message()
    assert (small, code, answer["error"]["code"]) == (200, 413, "answer_too_large")
    assert list(store.calls()) == [1]
    assert not store.failures


async def test_a_call_that_takes_too_long_is_a_platform_failure_and_not_repeated(tmp_path: Path):
    store = ScriptedStore()
    async with (
        fake_engine(tmp_path / "e.sock") as engine,
        listening_gateway(store, limits=GatewayLimits(call_seconds=0.2)) as client,
        anthropic.AsyncAnthropic(base_url=client.base(), api_key=TOKEN) as official,
    ):
        store.has_engine(engine.url)
        engine.behave(hang, hang)
        code, answer = await client.call()
        assert len(store.failures) == 1
        with pytest.raises(anthropic.APIStatusError, match=r"longer than 0\.2 s"):
            await official.messages.create(**ASK)
        assert len(engine.requests) == 2
        again, _ = await client.call()
    assert (code, answer["error"]["code"], again) == (503, "call_timeout", 200)


async def test_the_calls_of_a_frozen_engine_continue_at_another_one(tmp_path: Path):
    limits = GatewayLimits(check_seconds=0.05, give_up_seconds=0.1)
    store = ScriptedStore()
    frozen = asyncio.Event()

    async def freeze(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frozen.set()
        await reader.read()
        await reader.read()
        writer.close()

    listener = await asyncio.start_unix_server(freeze, tmp_path / "frozen.sock")
    store.has_engine(f"unix:{tmp_path / 'frozen.sock'}", engine_id="frozen")
    async with listening_gateway(store, limits=limits) as client, fake_engine(tmp_path / "well.sock") as engine:
        call = asyncio.create_task(client.call())
        await frozen.wait()
        store.has_engine(engine.url, engine_id="well")
        code, answer = await call
    listener.close()
    assert code == 200
    assert content_of(answer) == said(store.calls()[1].seed)
    assert store.calls()[1].engine_id == "well"
    assert not store.failures
