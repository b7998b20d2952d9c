"""Closed by default: every route of every listener refuses requests without a token for it.

The routes are read from the apps themselves, so one that is added later is asked too.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from re import _constants as regex  # type: ignore[attr-defined]
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route

import relight
from relight.gpu_worker.engine import engine_command
from relight.llm_proxy.app import PATH, open_gateway
from relight.llm_proxy.metrics import PATHS as GATEWAY_METRICS
from relight.llm_proxy.metrics import Metered
from relight.llm_proxy.server import bind, configure
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store_api.app import create_app
from relight.store_api.backends import PostgresBackend
from relight.store_api.grants import Principal, principals_of
from tests.support.gateway import QuietServer
from tests.support.seeds import seed_engine
from tests.support.store_kit import PostgresKit, opened
from tests.support.store_service import TOKEN, store_service

OPEN = {"/healthz"}
FOR_AGENTS = {"/v1/traces"}
"""Where an attempt's token is good for its own attempt."""
METHODS = ("GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")
REFUSALS = (401, 403)
SOURCE = Path(relight.__file__).parent
LISTENING_CALLS = {"listen", "run_app", "create_server", "start_server", "create_unix_server", "start_unix_server"}
LISTENERS = {
    "transport/listening.py": "the store service and the gateway",
    "runner/gateway_relay.py": "passes attempts' calls on to the gateway, which asks for their keys; on loopback",
    "stack/ports.py": "asks whether a port is free, and closes it",
}


def routes_of(app: FastAPI) -> set[str]:
    """Every path that the app knows, mounted apps too, with something in the place of its parameters."""
    found: set[str] = set()
    for route in app.routes:
        assert isinstance(route, Route | Mount), f"{route!r}: say here how it is closed"
        path = route.path if isinstance(route, Route) else f"{route.path}/x"
        found.add(re.sub(r"\{.*?\}", "x", path))
    return found


def expand(pattern: Any) -> Iterator[str]:
    """Every text of a regular expression, but for repetitions, which are left out or come once."""
    parts: list[list[str]] = []
    for kind, argument in pattern:
        if kind is regex.LITERAL:
            parts.append([chr(argument)])
        elif kind is regex.BRANCH:
            parts.append([text for branch in argument[1] for text in expand(branch)])
        elif kind is regex.SUBPATTERN:
            parts.append(list(expand(argument[-1])))
        elif kind in (regex.MAX_REPEAT, regex.MIN_REPEAT):
            parts.append([*([""] if argument[0] == 0 else []), *expand(argument[2])])
        elif kind in (regex.NOT_LITERAL, regex.ANY, regex.IN):
            parts.append(["x"])
        elif kind not in (regex.AT, regex.ASSERT, regex.ASSERT_NOT):
            raise AssertionError(f"{kind}: say here how it is expanded")
    return ("".join(texts) for texts in itertools.product(*parts))


def basic(pair: str) -> str:
    return "Basic " + b64encode(pair.encode()).decode()


def strangers(token_of_another: str) -> dict[str, Mapping[str, str]]:
    """Headers that open nothing."""
    pairs = {
        "wrong": "relight:wrong",
        "another user": f"x:{TOKEN}",
        "the attempt as a user": f"relight:{token_of_another}",
    }
    return {
        "nothing": {},
        "an empty token": {"Authorization": "Bearer "},
        "a wrong token": {"Authorization": "Bearer wrong"},
        "no scheme": {"Authorization": TOKEN},
        "a token that is longer": {"Authorization": f"Bearer {TOKEN}x"},
        "another attempt's token": {"Authorization": f"Bearer {token_of_another}"},
        **{
            f"{name} by Basic": {"Authorization": "Basic " + b64encode(pair.encode()).decode()}
            for name, pair in pairs.items()
        },
    }


@pytest.fixture
async def kit(database: Database) -> PostgresKit:
    """Two rollouts under way."""
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    await seed_engine(database)
    for rollout_id in ("r1", "r2"):
        await kit.add_rollout(rollout_id)
    return kit


@pytest.fixture
async def session() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def leaks(
    session: aiohttp.ClientSession, url: str, paths: set[str], headers: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str, str, int]]:
    """Who got an answer that is no refusal."""
    asked = [(path, method, who) for path in sorted(paths) for method in METHODS[:2] for who in headers]
    asked += [(path, method, "nothing") for path in sorted(paths) for method in METHODS[2:]]
    found: list[tuple[str, str, str, int]] = []
    for path, method, who in asked:
        async with session.request(method, url + path, headers=headers[who], data=b"{}") as answer:
            if answer.status not in REFUSALS:
                found.append((path, method, who, answer.status))
    return found


async def test_every_route_of_the_store_service_refuses_requests_without_a_token(
    kit: PostgresKit, session: aiohttp.ClientSession
) -> None:
    app = create_app(PostgresBackend(kit.store, kit.database), token=TOKEN)
    paths = routes_of(app) - OPEN
    assert len(paths) > 20
    assert {"/v1/relight/events", "/v1/relight/runs/x/events", "/v1/relight/runs", "/v1/traces"} <= paths
    headers = strangers((await opened(kit, "r2")).token)
    async with store_service(kit.store, kit.database) as url:
        assert await leaks(session, url, paths - FOR_AGENTS | {"/", "/docs", "/no/such/route"}, headers) == []
        others = {who: header for who, header in headers.items() if who != "another attempt's token"}
        assert await leaks(session, url, paths & FOR_AGENTS, others) == []


def test_the_routes_open_to_all_or_to_agents_are_the_listed_ones(kit: PostgresKit) -> None:
    app = create_app(PostgresBackend(kit.store, kit.database), token=TOKEN)
    for principal, listed in ((Principal.ANYONE, OPEN), (Principal.ATTEMPT, FOR_AGENTS)):
        found = {path for path in routes_of(app) for method in METHODS if principal in principals_of(method, path)}
        assert found == listed


async def test_an_attempts_token_writes_no_spans_of_another(kit: PostgresKit, session: aiohttp.ClientSession) -> None:
    mine, other = await opened(kit, "r1"), await opened(kit, "r2")
    attributes = {"agentlightning.rollout_id": other.rollout_id, "agentlightning.attempt_id": other.attempt_id}
    values = [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]
    span = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "x", "attributes": values}
    span |= {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    body = {"resourceSpans": [{"resource": {"attributes": values}, "scopeSpans": [{"spans": [span]}]}]}
    async with store_service(kit.store, kit.database) as url:
        headers = {"Authorization": f"Bearer {mine.token}"}
        async with session.post(f"{url}/v1/traces", json=body, headers=headers) as answer:
            assert answer.status in REFUSALS
    assert await kit.database.pool.fetchval("select count(*) from spans") == 0


@asynccontextmanager
async def gateway(kit: PostgresKit) -> AsyncGenerator[str]:
    """The gateway as its process serves it."""
    listener = bind("127.0.0.1", 0)
    async with open_gateway(kit.store, TOKEN) as app:
        server = QuietServer(configure(Metered(app, TOKEN, app.engines), 5))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def test_every_route_of_the_gateway_refuses_requests_without_a_token(
    kit: PostgresKit, session: aiohttp.ClientSession
) -> None:
    mine, other = await opened(kit, "r1"), await opened(kit, "r2")
    paths = {path for path in expand(regex_parser.parse(PATH.pattern)) if PATH.fullmatch(path)}
    tails = {path.removeprefix("/rollout/x/attempt/x/") for path in paths}
    assert {"v1/chat/completions", "v1/models", "v1/models/x", "status"} <= tails
    paths = {f"/rollout/{mine.rollout_id}/attempt/{mine.attempt_id}/{tail}" for tail in tails}
    missing = {f"/rollout/none/attempt/none/{tail}" for tail in tails}
    async with gateway(kit) as url:
        found = await leaks(session, url, paths | missing | set(GATEWAY_METRICS), strangers(other.token))
        assert [leak for leak in found if not await unknown_to_all(session, url, leak, mine.token)] == []
        async with session.get(f"{url}/healthz") as answer:
            assert answer.status == 200


async def unknown_to_all(session: aiohttp.ClientSession, url: str, leak: Any, token: str) -> bool:
    """Whether the attempt itself is told that there is no such route: then a stranger may know that too."""
    path, method, _, status = leak
    if status != 404:
        return False
    headers = {"Authorization": f"Bearer {token}"}
    async with session.request(method, url + path, headers=headers, data=b"{}") as answer:
        return answer.status == 404


async def test_the_admins_token_calls_no_model(kit: PostgresKit, session: aiohttp.ClientSession) -> None:
    mine = await opened(kit, "r1")
    call = f"/rollout/{mine.rollout_id}/attempt/{mine.attempt_id}/v1/chat/completions"
    async with gateway(kit) as url:
        admin = {"Authorization": f"Bearer {TOKEN}"}
        async with session.post(url + call, json={"messages": []}, headers=admin) as answer:
            assert answer.status == 401


def test_nothing_else_listens() -> None:
    found: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if called in LISTENING_CALLS:
                found.setdefault(str(file.relative_to(SOURCE)), set()).add(called)
    assert found.keys() <= LISTENERS.keys(), "a new listener: close it, and say here what it is"


@pytest.mark.parametrize("cpu", [True, False])
def test_engines_listen_on_a_unix_socket_alone(cpu: bool) -> None:
    command = engine_command(Path("/model"), Path("/run/engine.sock"), {}, cpu=cpu)
    assert command[command.index("--uds") + 1] == "/run/engine.sock"
    assert not {"--host", "--port"} & set(command)
