"""The gateway as a process: it drains when told to end, and says plainly why it does not start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from relight.llm_proxy.server import address, bind
from relight.settings import Settings
from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.wire import OpenRequest
from tests.support.fake_engine import FakeEngine, fake_engine
from tests.support.gateway import listening_gateway
from tests.support.orchestration import eventually
from tests.support.seeds import seed_engine, seed_rollout, seed_run
from tests.support.store_service import TOKEN, store_service

RUN = """
import logging
import uvloop
from relight.cli.event_loop import run_service
from relight.errors import RelightError
from relight.llm_proxy.server import serve
from relight.settings import load_settings
logging.basicConfig(level="INFO")
try:
    {run}
except RelightError as error:
    raise SystemExit(f"error: {{error}}")
"""
BARE = 'uvloop.run(serve(load_settings(), "127.0.0.1", {port}))'
COMMAND = 'run_service(serve(load_settings(), "127.0.0.1", {port}))'
"""As `relight gateway` does, which has its own say on signals."""


@asynccontextmanager
async def gateway_process(
    store_url: str, port: int, token: str = TOKEN, run: str = BARE
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The process, as it starts; killed where it has not ended by itself."""
    environment = os.environ | {"RELIGHT_STORE_URL": store_url, "RELIGHT_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN.format(run=run.format(port=port)), env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def url_of(process: asyncio.subprocess.Process) -> str:
    """Where it listens, once it does."""
    assert process.stderr is not None
    async for line in process.stderr:
        if b"serving url=" in line:
            return line.decode().partition("url=")[2].split()[0]
    raise AssertionError("it ended before it served")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[FakeEngine]:
    async with fake_engine(tmp_path / "e.sock") as engine:
        yield engine


@pytest.fixture
async def store_url(database: Database, engine: FakeEngine) -> AsyncGenerator[str]:
    """A store service with a rollout, and an engine that is ready."""
    await seed_run(database)
    await seed_rollout(database, "ro")
    await seed_engine(database)
    await database.pool.execute("update engines set url = $1", engine.url)
    store = await PostgresStore.create(database, "http://127.0.0.1:1")
    async with store_service(store, database) as url:
        yield url


@pytest.mark.parametrize("run", [BARE, COMMAND], ids=["bare", "command"])
async def test_a_call_in_progress_ends_and_is_recorded_when_the_gateway_is_stopped(
    store_url: str, engine: FakeEngine, database: Database, run: str
):
    proceed = asyncio.Event()

    async def slow(*arguments: object):
        await proceed.wait()
        return await engine.answer(*arguments)  # type: ignore[arg-type]

    engine.behave(slow)
    async with StoreClient(store_url, TOKEN) as store, gateway_process(store_url, 0, run=run) as process:
        asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
        attempt = (await store.open_attempt(asked)).attempt
        assert attempt is not None
        url = f"{await url_of(process)}/rollout/ro/attempt/{attempt.attempt_id}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "7*8?"}], "max_tokens": 4}
        headers = {"authorization": f"Bearer {attempt.token}"}
        async with aiohttp.ClientSession() as session:
            call = asyncio.create_task(session.post(url, json=body, headers=headers))
            await engine.arrived.wait()
            process.send_signal(signal.SIGTERM)
            proceed.set()
            assert (await call).status == 200
        assert await process.wait() == 0
    rows = await database.pool.fetch("select delivered, version_start, token_ids from generations")
    assert [(row["delivered"], row["version_start"], len(row["token_ids"])) for row in rows] == [("yes", 0, 4)]


async def test_a_gateway_reports_its_calls_in_progress(store_url: str, engine: FakeEngine, database: Database):
    proceed = asyncio.Event()

    async def slow(*arguments: object):
        await proceed.wait()
        return await engine.answer(*arguments)  # type: ignore[arg-type]

    async def reported(status: str) -> list[str] | None:
        text = "select doing from workers where kind = 'gateway' and status = $1"
        return await database.pool.fetchval(text, status)

    engine.behave(slow)
    async with StoreClient(store_url, TOKEN) as store, listening_gateway(store, report_seconds=(0.1, 0.1)) as gateway:
        asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
        attempt = (await store.open_attempt(asked)).attempt
        assert attempt is not None

        async def is_idle() -> bool:
            return await reported("idle") == []

        await eventually(is_idle)
        url = f"{gateway.origin}/rollout/ro/attempt/{attempt.attempt_id}/v1/chat/completions"
        headers = {"authorization": f"Bearer {attempt.token}"}
        async with aiohttp.ClientSession() as session:
            body = {"messages": [{"role": "user", "content": "7*8?"}], "max_tokens": 4}
            call = asyncio.create_task(session.post(url, json=body, headers=headers))
            assert await eventually(lambda: reported("busy")) == ["model calls: 1"]
            proceed.set()
            assert (await call).status == 200


async def test_a_stream_in_progress_ends_and_is_recorded_when_the_gateway_is_stopped(
    store_url: str, engine: FakeEngine, database: Database
):
    async with StoreClient(store_url, TOKEN) as store, gateway_process(store_url, 0, run=COMMAND) as process:
        url, headers = await opened(store, process)
        body = {"messages": [{"role": "user", "content": "7*8?"}], "max_tokens": 4, "stream": True}
        proceed = asyncio.Event()

        async def slowly(request: object, asked: object, *rest: object):
            await proceed.wait()
            return await engine.answer(request, asked)  # type: ignore[arg-type]

        engine.behave(slowly)
        async with aiohttp.ClientSession() as session:
            call = asyncio.create_task(session.post(f"{url}/v1/chat/completions", json=body, headers=headers))
            await engine.arrived.wait()
            process.send_signal(signal.SIGTERM)
            proceed.set()
            answer = await call
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
        assert await process.wait() == 0
    assert await database.pool.fetchval("select count(*) from generations where delivered <> 'no' and complete") == 1


async def test_a_call_that_waits_for_an_engine_is_refused_when_the_gateway_is_stopped(
    store_url: str, database: Database
):
    async with StoreClient(store_url, TOKEN) as store, gateway_process(store_url, 0, run=COMMAND) as process:
        url, headers = await opened(store, process)
        await database.pool.execute("update engines set state = 'dead'")
        body = {"messages": [{"role": "user", "content": "7*8?"}], "max_tokens": 4}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.timeout(60):
            call = asyncio.create_task(session.post(f"{url}/v1/chat/completions", json=body))

            async def waits() -> bool:
                async with session.get(f"{url}/status") as answer:
                    return (await answer.json())["waiting"]

            await eventually(waits)
            process.send_signal(signal.SIGTERM)
            answer = await call
            error = (await answer.json())["error"]
        assert await process.wait() == 0
    assert (answer.status, error["code"]) == (503, "platform_unavailable")
    assert "this gateway is shutting down" in error["message"]
    assert await database.pool.fetchval("select count(*) from call_failures") == 1


async def opened(store: StoreClient, process: asyncio.subprocess.Process) -> tuple[str, dict[str, str]]:
    """An attempt's address and key."""
    asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
    attempt = (await store.open_attempt(asked)).attempt
    assert attempt is not None
    url = f"{await url_of(process)}/rollout/ro/attempt/{attempt.attempt_id}"
    return url, {"authorization": f"Bearer {attempt.token}"}


async def test_a_port_in_use_is_one_clear_error(store_url: str):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        async with gateway_process(store_url, port) as process:
            _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().startswith(f"error: the gateway can't listen on 127.0.0.1:{port}: Address already in use")


async def test_a_wrong_admin_token_is_reported_at_the_start_and_not_as_an_agents_error(store_url: str):
    async with gateway_process(store_url, 0, token="wrong") as process:
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1].startswith("error: token: the store service at")
    assert "Traceback" not in said.decode()


async def test_several_gateways_listen_side_by_side(store_url: str):
    async with gateway_process(store_url, 0) as one, gateway_process(store_url, 0) as other:
        assert await url_of(one) != await url_of(other)


def test_it_listens_at_the_address_that_agents_are_given():
    assert address(Settings(gateway_url="http://10.0.0.7:4748")) == ("10.0.0.7", 4748)
    bind("127.0.0.1", 0).close()
