"""The service over a store in memory: what it answers without a Postgres, and the ways to start one."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from fastapi.routing import APIRoute
from pydantic import SecretStr

from relight import InMemoryLightningStore, LightningStoreClient, LightningStoreServer
from relight.errors import ConfigError, NeedsPostgresError, StoreError
from relight.settings import Settings
from relight.store.attempts.attempt_tokens import attempt_token
from relight.store.attempts.client import StoreClient
from relight.store.memory.attempts import MemoryAttemptStore
from relight.store_api.app import ON_POSTGRES
from relight.store_api.server import bind, serve
from relight.transport.retrying_http import error_of
from relight.types.resources import ProxyLLM
from relight.types.rollout import AttemptStatus, RolloutConfig
from relight.types.wire import OpenRequest
from tests.support.lightning_kit import begin, running, span_of
from tests.support.otlp import make_request, make_span
from tests.support.store_service import TOKEN, memory_service

BEARER = {"Authorization": f"Bearer {TOKEN}"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
GATEWAY = "http://gateway"


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def url(store: InMemoryLightningStore) -> AsyncGenerator[str]:
    async with memory_service(store, GATEWAY) as url:
        yield url


@pytest.fixture
async def session() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=BEARER) as session:
        yield session


def routes_on_postgres() -> list[tuple[str, str]]:
    routes = [route for module in ON_POSTGRES for route in module.router.routes if isinstance(route, APIRoute)]
    return [(method, route.path.replace("{piece}", "0")) for route in routes for method in sorted(route.methods)]


@pytest.mark.parametrize(("method", "path"), routes_on_postgres())
async def test_what_needs_postgres_is_refused_with_an_explanation(
    url: str, session: aiohttp.ClientSession, method: str, path: str
) -> None:
    async with session.request(method, url + path, json={}) as answer:
        body = await answer.read()
        assert answer.status == 501
    error = error_of(501, body)
    assert isinstance(error, NeedsPostgresError)
    assert "relight up" in error.message


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/agl/health", "/v1/agl/capabilities"])
async def test_what_needs_no_postgres_is_answered(url: str, session: aiohttp.ClientSession, path: str) -> None:
    async with session.get(url + path) as answer:
        assert answer.status == 200


async def test_requests_without_a_token_are_refused(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/agl/statistics") as answer:
        assert answer.status == 401


@pytest.mark.parametrize("text", ["short", "x" * 5000])
async def test_spans_by_otlp_are_those_of_the_attempt_whose_token_brings_them(
    url: str, session: aiohttp.ClientSession, store: InMemoryLightningStore, text: str
) -> None:
    mine, other = await begin(store), await begin(store)
    token = attempt_token(store.tables.key, mine.attempt.attempt_id)
    headers = PROTOBUF | {"Authorization": f"Bearer {token}"}
    request = make_request([make_span(1, {"text": text})], None, None).SerializeToString()
    for _ in range(2):
        async with session.post(f"{url}/v1/traces", data=request, headers=headers) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
    (span,) = await store.query_spans(mine.rollout_id)
    assert (span.sequence_id, span.attributes["text"], span.events) == (1, text, [])
    foreign = make_request([make_span(2)], other.rollout_id, other.attempt.attempt_id).SerializeToString()
    async with session.post(f"{url}/v1/traces", data=foreign, headers=headers) as answer:
        assert answer.status == 403
    await store.cancel_rollout(mine.rollout_id)
    async with session.get(f"{url}/v1/agl/statistics", headers=headers) as answer:
        assert answer.status == 401


async def test_a_span_of_an_attempt_that_is_not_there_is_counted_as_rejected(
    url: str, session: aiohttp.ClientSession
) -> None:
    request = make_request([make_span(1)], "none", "none").SerializeToString()
    async with session.post(f"{url}/v1/traces", data=request, headers=PROTOBUF) as answer:
        assert (answer.status, b"unknown" in await answer.read()) == (200, True)


async def test_a_claim_brings_the_key_of_its_own_attempt(url: str, store: InMemoryLightningStore) -> None:
    async with LightningStoreClient(url, TOKEN) as client:
        added = await client.add_resources({"proxy": ProxyLLM(endpoint=GATEWAY, model="m")})
        await client.enqueue_rollout("x")
        claim = await client.dequeue_rollout()
        assert claim is not None
        assert claim.resources_id is not None
        found = await client.get_resources_by_id(claim.resources_id)
        assert found is not None
        proxy = found.resources["proxy"]
        assert isinstance(proxy, ProxyLLM)
        assert proxy.api_key == attempt_token(store.tables.key, claim.attempt.attempt_id)
        assert (await store.query_rollouts())[0].resources_id == added.resources_id


async def test_runners_and_the_gateway_work_on_the_same_rows(url: str, store: InMemoryLightningStore) -> None:
    MemoryAttemptStore(tables=store.tables).add_rollout("r1")
    async with StoreClient(url, TOKEN) as client:
        request = OpenRequest(rollout_id="r1", try_number=1, execution="x", worker_id="runner-1")
        opened = (await client.open_attempt(request)).attempt
    assert opened is not None
    assert (await store.query_attempts("r1"))[0].attempt_id == opened.attempt_id


async def _write_elsewhere(endpoint: str) -> None:
    async with LightningStoreClient(endpoint) as client:
        rollout = await client.dequeue_rollout("child")
        assert rollout is not None
        await client.add_span(span_of(rollout, "from-child"))
        await client.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)


def _in_a_process(endpoint: str) -> None:
    asyncio.run(_write_elsewhere(endpoint))


async def test_a_server_of_a_store_shares_it_with_other_processes(store: InMemoryLightningStore) -> None:
    server = LightningStoreServer(store)
    await server.start()
    try:
        made = await server.enqueue_rollout("x")
        child = multiprocessing.get_context("spawn").Process(target=_in_a_process, args=(server.endpoint,))
        child.start()
        (done,) = await server.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60)
        await asyncio.to_thread(child.join)
    finally:
        await server.stop()
    assert done.status == "succeeded"
    assert [span.span_id for span in await store.query_spans(made.rollout_id)] == ["from-child"]


async def test_a_server_finds_overdue_attempts(store: InMemoryLightningStore) -> None:
    server = LightningStoreServer(store, token="t")
    await server.start()
    await server.start()
    try:
        rollout = await running(server, config=RolloutConfig(timeout_seconds=0.01))
        async with LightningStoreClient(server.endpoint) as client:
            (ended,) = await client.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)
        assert ended.status == "failed"
    finally:
        await server.stop()


async def test_a_server_that_has_stopped_serves_no_more_and_can_be_started_again(
    store: InMemoryLightningStore,
) -> None:
    server = LightningStoreServer(store)
    for number in range(2):
        await server.start()
        async with LightningStoreClient(server.endpoint) as client:
            await client.enqueue_rollout(number)
        await server.aclose()
    async with LightningStoreClient(server.endpoint, retry_seconds=0.1) as client:
        with pytest.raises(StoreError):
            await client.statistics()
    assert (await store.query_rollouts()).total == 2


async def test_a_server_needs_a_free_port_and_a_store_in_memory(store: InMemoryLightningStore) -> None:
    with bind("127.0.0.1", 0, "the first") as taken, pytest.raises(StoreError, match="can't listen"):
        await LightningStoreServer(store, port=taken.getsockname()[1]).start()
    with pytest.raises(ConfigError, match="relight store"):
        LightningStoreServer(LightningStoreClient("http://127.0.0.1:1"))


async def test_the_command_serves_without_a_postgres_until_it_is_stopped() -> None:
    ready, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    settings = Settings(token=SecretStr(TOKEN))
    serving = asyncio.create_task(serve(settings, port=0, memory=True, on_ready=ready.set_result, stop=stop))
    async with LightningStoreClient(await ready, TOKEN) as client:
        await client.enqueue_rollout("x")
        assert (await client.statistics())["total_rollouts"] == 1
    stop.set()
    await serving


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
