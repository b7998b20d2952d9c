"""How large and how long a call may be, and engines that freeze."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import web

from relight.llm_proxy import app
from relight.llm_proxy.engine_health import watch
from relight.llm_proxy.engines import Engines
from relight.llm_proxy.limits import Limits
from tests.support.fake_engine import fake_engine
from tests.support.gateway import TOKEN, ScriptedStore, listening_gateway
from tests.unit.llm_proxy.parts import content_of, said

ASK: Any = {"model": "policy", "max_tokens": 5, "messages": [{"role": "user", "content": "7*8?"}]}


async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """An engine that samples for ever."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_request_that_is_too_long_is_refused(tmp_path: Path):
    store = ScriptedStore()
    async with listening_gateway(store, limits=Limits(request_bytes=50)) as client:
        code, answer = await client.call(messages=["x" * 50])
    assert (code, answer["error"]["code"]) == (413, "request_too_large")


async def test_an_answer_that_is_too_long_is_refused_whole_and_streamed(tmp_path: Path):
    store = ScriptedStore()
    async with (
        fake_engine(tmp_path / "e.sock") as engine,
        listening_gateway(store, limits=Limits(answer_bytes=3000)) as client,
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


async def test_a_call_that_takes_too_long_is_the_platforms_failure_and_not_tried_again(tmp_path: Path):
    store = ScriptedStore()
    async with (
        fake_engine(tmp_path / "e.sock") as engine,
        listening_gateway(store, limits=Limits(call_seconds=0.2)) as client,
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


async def test_the_calls_of_an_engine_that_froze_go_on_at_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def watch_closely(engines: Engines) -> None:
        await watch(engines, ask_seconds=0.05, give_up_seconds=0.1)

    monkeypatch.setattr(app, "watch", watch_closely)
    store = ScriptedStore()
    frozen = asyncio.Event()

    async def freeze(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frozen.set()
        await reader.read()
        await reader.read()
        writer.close()

    listener = await asyncio.start_unix_server(freeze, tmp_path / "frozen.sock")
    store.has_engine(f"unix:{tmp_path / 'frozen.sock'}", engine_id="frozen")
    async with listening_gateway(store) as client, fake_engine(tmp_path / "well.sock") as engine:
        call = asyncio.create_task(client.call())
        await frozen.wait()
        store.has_engine(engine.url, engine_id="well")
        code, answer = await call
    listener.close()
    assert code == 200
    assert content_of(answer) == said(store.calls()[1].seed)
    assert store.calls()[1].engine_id == "well"
    assert not store.failures
