"""The real vLLM, started once: what it serves, how it takes new weights, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from relight.errors import EngineError
from relight.gpu_worker.engine import EngineProcess
from tests.integration.gpu_worker.tiny_model import make_tiny_model, token_logprobs

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOOT_SECONDS = 300
TOLERANCE = 2e-3
QUESTION = [{"role": "user", "content": "7*8? " * 8}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_tiny_model(tmp_path_factory.mktemp(name), seed=seed) for seed, name in enumerate("ab")}


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="relight-engine-"))
    yield path
    shutil.rmtree(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(models: dict[str, Path], directory: Path) -> AsyncIterator[EngineProcess]:
    engine = await EngineProcess.start(
        models["a"], directory / "engine.sock", log=directory / "engine.log", max_model_len=256
    )
    try:
        await engine.wait_ready(BOOT_SECONDS)
        yield engine
    finally:
        await engine.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def http(engine: EngineProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(engine.socket_path))) as session:
        yield session


def request(**more: Any) -> dict[str, Any]:
    return {
        "model": "policy",
        "messages": QUESTION,
        "temperature": 0.7,
        "seed": 5,
        "max_tokens": 8,
        "logprobs": True,
        "return_token_ids": True,
        "ignore_eos": True,
        **more,
    }


async def ask(http: aiohttp.ClientSession) -> tuple[list[int], list[int], list[float]]:
    """Prompt ids, sampled ids and their logprobs."""
    async with http.post("http://engine/v1/chat/completions", json=request()) as response:
        body = await response.json()
        assert response.status == 200, body
    choice = body["choices"][0]
    return body["prompt_token_ids"], choice["token_ids"], [t["logprob"] for t in choice["logprobs"]["content"]]


async def publish(engine: EngineProcess, weights: Path) -> None:
    """As the engine's keeper does, between which it records the version."""
    await engine.client.load(weights)
    assert await engine.client.paused()
    await engine.client.resume()


async def test_it_serves_the_policy_with_the_logprobs_that_were_sampled_from(
    engine: EngineProcess, http: aiohttp.ClientSession, models: dict[str, Path]
) -> None:
    assert await engine.client.models() == ["policy"]
    prompt, sampled, logprobs = await ask(http)
    assert logprobs == pytest.approx(token_logprobs(models["a"], prompt, sampled, temperature=0.7), abs=TOLERANCE)


async def test_it_reports_how_many_tokens_it_has_generated(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    before = await engine.client.read_load()
    await ask(http)
    after = await engine.client.read_load()
    assert before is not None
    assert after is not None
    assert after.running == 0
    assert after.tokens >= before.tokens + 8


async def test_published_weights_answer_the_next_call_even_where_its_prompt_was_cached(
    engine: EngineProcess, http: aiohttp.ClientSession, models: dict[str, Path]
) -> None:
    await publish(engine, models["a"])
    await ask(http)
    await publish(engine, models["b"])
    prompt, sampled, logprobs = await ask(http)
    of_old = token_logprobs(models["a"], prompt, sampled, temperature=0.7)
    of_new = token_logprobs(models["b"], prompt, sampled, temperature=0.7)
    assert of_old != pytest.approx(of_new, abs=10 * TOLERANCE)
    assert logprobs == pytest.approx(of_new, abs=TOLERANCE)


async def test_a_call_in_progress_continues_with_the_new_weights_after_a_publication(
    engine: EngineProcess, http: aiohttp.ClientSession, models: dict[str, Path]
) -> None:
    await publish(engine, models["a"])
    prompt: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    published_after = 0
    async with http.post("http://engine/v1/chat/completions", json=request(max_tokens=180, stream=True)) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            body = orjson.loads(line[6:])
            prompt = prompt or body.get("prompt_token_ids") or []
            for choice in body["choices"]:
                sampled += choice.get("token_ids") or []
                logprobs += [token["logprob"] for token in (choice.get("logprobs") or {}).get("content") or []]
            if sampled and not published_after:
                await publish(engine, models["b"])
                published_after = len(sampled)
    assert len(sampled) == len(logprobs) == 180
    of_new = token_logprobs(models["b"], prompt, sampled, temperature=0.7)
    assert logprobs[0] != pytest.approx(of_new[0], abs=TOLERANCE)
    assert logprobs[-10:] == pytest.approx(of_new[-10:], abs=TOLERANCE)


async def test_a_directory_without_weights_is_refused_and_the_engine_keeps_serving(
    engine: EngineProcess, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="holds no"):
        await engine.client.load(tmp_path)
    assert not await engine.client.paused()
    assert len((await ask(http))[1]) == 8


async def test_an_engine_that_failed_to_load_weights_samples_nothing_from_them(
    engine: EngineProcess, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EngineError, match="must be started again: POST /collective_rpc: 500"):
        await engine.client.load(tmp_path)
    assert await engine.client.paused()


async def test_no_process_of_an_engine_remains_when_its_server_is_killed(engine: EngineProcess) -> None:
    supervisor, server, *others = sorted(engine.pids)
    assert others
    sockets = engine.socket_path.parent / "rpc"
    assert list(sockets.iterdir())
    os.kill(server, signal.SIGKILL)
    async with asyncio.timeout(30):
        await engine.wait()
    assert engine.pids == []
    assert not engine.alive
    assert supervisor not in engine.pids
    with pytest.raises(EngineError, match="can't reach the engine"):
        await engine.client.models()
    await engine.kill()
    assert not sockets.exists()
    assert not engine.socket_path.exists()
