"""The store service: who gets in, how it refuses, and how it starts and ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from typing import Any, cast

import aiohttp
import pytest
from fastapi.routing import APIRoute
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send

from relight.errors import ConfigError, PostgresError, StoreError
from relight.settings import Settings
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store_api.access import AccessMiddleware
from relight.store_api.app import create_app
from relight.store_api.backends import PostgresBackend
from relight.store_api.server import serve
from tests.support.postgres import OWNER, connected_as
from tests.support.store_kit import PostgresKit
from tests.support.store_service import TOKEN, store_service

BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPEN_ROUTES = {"/healthz"}


@pytest.fixture
async def session() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def url(postgres_kit: PostgresKit) -> AsyncGenerator[str]:
    async with store_service(postgres_kit.store, postgres_kit.database, max_body_bytes=10_000) as url:
        yield url


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


async def test_no_route_but_healthz_answers_without_the_right_token(
    url: str, session: aiohttp.ClientSession, database: Database, postgres_store: PostgresStore
) -> None:
    app = create_app(PostgresBackend(postgres_store, database), token=TOKEN)
    routes = [
        (cast(Any, route).path, method) for route in app.routes for method in getattr(route, "methods", None) or ["GET"]
    ]
    assert len([route for route in app.routes if isinstance(route, APIRoute)]) >= 13
    wrong = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        basic("relight", "wrong"),
        basic("x", TOKEN),
    ]
    for path, method in routes:
        if path in OPEN_ROUTES:
            continue
        for headers in wrong:
            async with session.request(method, url + re.sub(r"\{.*?\}", "x", path), headers=headers) as answer:
                assert answer.status == 401, (path, method, headers)
                assert "Bearer" in answer.headers["WWW-Authenticate"]
    async with session.get(url + "/no/such/route") as answer:
        assert answer.status == 401


@pytest.mark.parametrize("headers", [BEARER, {"authorization": f"bearer {TOKEN}"}, basic("relight", TOKEN)])
async def test_the_admin_token_opens_as_bearer_and_as_basic(
    url: str, session: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    async with session.get(url + "/v1/relight/engines?run=demo", headers=headers) as answer:
        assert (answer.status, await answer.json()) == (200, {"items": []})


async def test_health_and_readiness(url: str, session: aiohttp.ClientSession) -> None:
    async with session.get(url + "/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})
    async with session.get(url + "/readyz", headers=BEARER) as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"rollout_id": "r1"}', "try_number"),
        (b'{"rollout_id": "r1", "try_number": 0, "execution": "x", "worker_id": "w"}', "try_number"),
        (b'{"rollout_id": "r1", "try_number": 1, "execution": "x", "worker_id": "w", "extra": 1}', "extra"),
        (b'{"rollout_id": "\\ud800", "try_number": 1, "execution": "x", "worker_id": "w"}', "Invalid JSON"),
        (b"[" * 5000, "recursion"),
    ],
)
async def test_an_invalid_body_is_answered_with_a_problem_that_names_the_fault(
    url: str, session: aiohttp.ClientSession, body: bytes, names: str
) -> None:
    async with session.post(url + "/v1/relight/attempts/open", data=body, headers=BEARER) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["status"], problem["title"]) == (422, 422, "InvalidRequestError")
    assert names in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/relight/nothing", 404),
        ("GET", "/v1/relight/attempts/open", 405),
        ("GET", "/v1/relight/engines", 422),
    ],
)
async def test_other_errors_are_answered_with_a_problem_too(
    url: str, session: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with session.request(method, url + path, headers=BEARER) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["status"]) == (status, status)


async def test_a_nul_character_in_an_id_is_refused_without_a_traceback(
    url: str, session: aiohttp.ClientSession
) -> None:
    body = {"rollout_id": "r\x00", "try_number": 1, "execution": "x", "worker_id": "w"}
    async with session.post(url + "/v1/relight/attempts/open", json=body, headers=BEARER) as answer:
        text = await answer.text()
    assert answer.status in (404, 422)
    assert "Traceback" not in text


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(url: str, session: aiohttp.ClientSession, chunked: bool) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield b" " * 1000

    data = chunks() if chunked else b" " * 20_000
    async with session.post(url + "/v1/relight/attempts/open", data=data, headers=BEARER) as answer:
        assert answer.status == 413
        assert "10000 bytes" in (await answer.json(content_type="application/problem+json"))["detail"]


async def test_requests_over_the_limit_get_a_retry_after() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] == "http.disconnect":
            return
        entered.set()
        await leave.wait()

    gate = AccessMiddleware(app, TOKEN, max_body_bytes=100, max_total_bytes=150)
    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-length", b"100")]
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": headers}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 100, "more_body": False}

    first = asyncio.create_task(gate(scope, receive, send))
    await entered.wait()
    await gate(scope, receive, send)
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    leave.set()
    await first
    sent.clear()
    await gate(scope, receive, send)
    assert sent == []


async def test_a_request_with_two_tokens_is_refused(url: str) -> None:
    head = f"GET /readyz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    try:
        writer.write(f"{head}authorization: Bearer wrong\r\nconnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    assert answer.startswith("HTTP/1.1 400")
    assert "two Authorization headers came" in answer


async def test_an_internal_error_shows_no_traceback(
    url: str, session: aiohttp.ClientSession, postgres_kit: PostgresKit
) -> None:
    async with connected_as(OWNER, postgres_kit.database.url) as owner:
        await owner.execute("alter table workers rename to workers_gone")
    try:
        body = {"worker_id": "w", "kind": "runner", "host": "h"}
        async with session.post(url + "/v1/relight/workers", json=body, headers=BEARER) as answer:
            problem = await answer.json(content_type="application/problem+json")
        assert (answer.status, problem["title"]) == (500, "InternalError")
        assert "workers" not in problem["detail"]
    finally:
        async with connected_as(OWNER, postgres_kit.database.url) as owner:
            await owner.execute("alter table workers_gone rename to workers")


async def test_the_openapi_schema_names_the_bodies(url: str, session: aiohttp.ClientSession) -> None:
    async with session.get(url + "/openapi.json", headers=BEARER) as answer:
        schema = await answer.json()
    operation = schema["paths"]["/v1/relight/attempts/open"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert "execution" in schema["components"]["schemas"][reference.rsplit("/", 1)[1]]["properties"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(schema).replace("'", '"')))
    assert references <= set(schema["components"]["schemas"])


def settings_for(database_url: str, **values: object) -> Settings:
    return Settings.model_validate({"postgres_url": database_url, "token": SecretStr(TOKEN)} | values)


async def test_it_serves_until_it_is_stopped(
    database_url: str, database: Database, session: aiohttp.ClientSession
) -> None:
    stop, ready = asyncio.Event(), asyncio.Queue[str]()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(settings_for(database_url), port=0, on_ready=ready.put_nowait, stop=stop))
        url = await ready.get()
        async with session.get(url + "/readyz", headers=BEARER) as answer:
            assert answer.status == 200
        row = await database.pool.fetchrow("select kind, pid from workers")
        assert tuple(row) == ("store", os.getpid())
        stop.set()
    with pytest.raises(aiohttp.ClientConnectionError):
        await session.get(url + "/healthz")


async def test_a_port_in_use_is_one_clear_error(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}.*in use"):
            await serve(settings_for(database_url), port=port)


async def test_without_a_token_it_does_not_start(database_url: str) -> None:
    with pytest.raises(ConfigError, match="RELIGHT_TOKEN"):
        await serve(settings_for(database_url, token=None), port=0)


async def test_without_postgres_it_does_not_start() -> None:
    with pytest.raises(PostgresError, match="RELIGHT_POSTGRES_URL"):
        await serve(settings_for("postgresql://postgres:secret@127.0.0.1:1/none"), port=0)
    with pytest.raises(ConfigError, match="RELIGHT_POSTGRES_URL"):
        await serve(settings_for("", postgres_url=None), port=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(database_url: str, number: signal.Signals) -> None:
    code = (
        "import sys, uvloop; from relight.settings import load_settings; from relight.store_api.server import serve;"
        "import logging; logging.basicConfig(level='INFO', stream=sys.stderr);"
        "uvloop.run(serve(load_settings(), port=0))"
    )
    environment = os.environ | {"RELIGHT_POSTGRES_URL": database_url, "RELIGHT_TOKEN": TOKEN}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr
    async with asyncio.timeout(60):
        while b"serving url=" not in (line := await process.stderr.readline()):
            assert line, "it ended before it served"
        process.send_signal(number)
        rest = await process.stderr.read()
        assert await process.wait() == 0
    assert b"Traceback" not in rest


async def test_resources_are_added_once_by_a_key_which_takes_no_others(
    url: str, session: aiohttp.ClientSession
) -> None:
    async def add(template: str) -> tuple[int, Any]:
        given = {"prompt": {"resource_type": "prompt_template", "template": template, "engine": "f-string"}}
        headers = BEARER | {"Idempotency-Key": "k"}
        async with session.post(f"{url}/v1/agl/resources", json=given, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    first, again, other = await add("a"), await add("a"), await add("b")
    assert first[0] == 201
    assert first == again
    assert (other[0], other[1]["detail"]) == (422, "Idempotency-Key: k was sent with another request; send another key")


async def test_a_key_that_is_too_long_to_be_kept_is_refused_and_not_cut(
    url: str, session: aiohttp.ClientSession
) -> None:
    for size, status in ((200, 201), (201, 422)):
        headers = BEARER | {"Idempotency-Key": "k" * size}
        async with session.post(f"{url}/v1/agl/rollouts", json={"input": 1}, headers=headers) as answer:
            assert answer.status == status, await answer.text()
