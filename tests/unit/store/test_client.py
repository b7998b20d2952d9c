"""The client: what it repeats, what it does not, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web

from relight.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    RelightError,
    StoreError,
    UnauthorizedError,
)
from relight.settings import Settings
from relight.store.attempts.client import StoreClient
from relight.store.attempts.plain_http_client import StoreLink
from relight.store.client import LightningStoreClient
from relight.transport.retrying_http import error_of
from relight.types.wire import GenerationRecord, WorkerReport
from tests.support.store_kit import MemoryKit, call, opened

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REPORT = WorkerReport(worker_id="w", kind="runner", host="h")


@asynccontextmanager
async def server(handler: Handler) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler.__call__)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Script:
    """Answers with one status after the other, and remembers what it was asked."""

    def __init__(self, *statuses: int, body: bytes = b"{}") -> None:
        self.statuses = list(statuses)
        self.body = body
        self.bodies: list[bytes] = []
        self.headers: list[str | None] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(request.headers.get("Authorization"))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == 0 and request.transport:
            request.transport.abort()
        if status == 200:
            return web.Response(body=self.body)
        return web.Response(status=status or 500, body=orjson.dumps({"detail": f"detail {status}"}))


@pytest.mark.parametrize("status", [502, 503, 504, 0])
async def test_a_request_is_repeated_unchanged_after_an_outage(status: int) -> None:
    script = Script(status, status, 200)
    async with server(script) as url, StoreClient(url, "secret", retry_seconds=10) as client:
        await client.register_worker(REPORT)
    assert len(script.bodies) == 3
    assert set(script.bodies) == {script.bodies[0]}
    assert script.headers == ["Bearer secret"] * 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, InvalidRequestError),
        (422, InvalidRequestError),
        (500, StoreError),
    ],
)
async def test_a_refused_request_is_not_repeated_and_raises_its_error(status: int, kind: type[RelightError]) -> None:
    script = Script(status)
    async with server(script) as url, StoreClient(url, "secret") as client:
        with pytest.raises(kind, match=f"detail {status}") as caught:
            await client.register_worker(REPORT)
    assert type(caught.value) is kind
    assert len(script.bodies) == 1


async def test_retries_end_with_an_error_that_says_where_and_why() -> None:
    script = Script(503)
    async with server(script) as url, StoreClient(url, "secret", retry_seconds=100) as client:
        with pytest.raises(StoreError, match=f"{url} for 0.2 s: detail 503"):
            await client.register_worker(REPORT, retry_seconds=0.2)
    assert len(script.bodies) >= 2


async def test_a_service_that_is_not_up_is_waited_for() -> None:
    async with StoreClient("http://127.0.0.1:1", "secret", retry_seconds=0.1) as client:
        with pytest.raises(StoreError, match=r"no answer from the store service at http://127\.0\.0\.1:1"):
            await client.engines("demo")


class SilentServer:
    """Takes its first so many requests and answers none of them; the next ones it answers after a while."""

    def __init__(self, silent: int, seconds: float = 0.0) -> None:
        self.silent = silent
        self.seconds = seconds
        self.asked = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.asked <= self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(self.seconds)
        return web.Response(body=b"{}")


@pytest.mark.parametrize("client", [StoreClient, StoreLink])
async def test_a_request_whose_connection_is_dead_is_soon_repeated_on_another(
    client: type[StoreClient],
) -> None:
    silent = SilentServer(1)
    async with server(silent) as url, client(url, "secret") as store, asyncio.timeout(10):
        store.first_request_seconds = 0.2
        await store.register_worker(REPORT)
    assert silent.asked == 2


async def test_a_service_that_is_slow_for_all_is_waited_for_longer_each_time() -> None:
    silent = SilentServer(0, seconds=1.0)
    async with server(silent) as url, StoreLink(url, "secret") as store:
        store.first_request_seconds = 0.1
        await store.register_worker(REPORT)
    assert silent.asked <= 5


async def test_a_long_poll_is_not_repeated_before_its_time() -> None:
    waiting = SilentServer(0, seconds=1.0)
    async with server(waiting) as url, LightningStoreClient(url) as store:
        store.first_request_seconds = 0.1
        with pytest.raises(StoreError, match="answer is invalid"):
            await store.wait_for_rollouts(rollout_ids=["r1"], timeout=1.0)
    assert waiting.asked == 1


async def test_an_answer_that_is_invalid_is_an_error() -> None:
    for body in (b"not json", b'{"unknown": 1}', b'{"items": 7}'):
        async with server(Script(200, body=body)) as url, StoreClient(url, "secret") as client:
            with pytest.raises(StoreError, match="answer is invalid"):
                await client.engines("demo")


def test_an_error_page_of_another_server_is_shown_in_part() -> None:
    error = error_of(500, b"<html>gateway" + b"x" * 1000)
    assert isinstance(error, StoreError)
    assert "500: <html>gateway" in error.message
    assert len(error.message) < 300


async def test_the_age_of_a_call_includes_an_outage_of_the_store() -> None:
    kit = MemoryKit()
    await kit.start()
    await kit.add_rollout("r1")
    record = call(await opened(kit), duration_seconds=1.0)
    script = Script(503, 503, 200, body=b'{"items": [{"state": "committed"}]}')
    async with server(script) as url, StoreClient(url, "secret") as client:
        await client.commit_generations([record])
    sent = [GenerationRecord.model_validate(orjson.loads(body)["items"][0]) for body in script.bodies]
    ages = [item.duration_seconds for item in sent]
    assert 1.0 <= ages[0] < ages[1] < ages[2]
    assert all(item.model_copy(update={"duration_seconds": 1.0}) == record for item in sent)


async def test_each_event_loop_has_connections_of_its_own() -> None:
    script = Script(200, body=b'{"items": []}')
    async with server(script) as url, StoreClient(url, "secret") as client:
        await client.engines("demo")

        def elsewhere() -> None:
            async def use() -> None:
                await client.engines("demo")
                await client.aclose()

            asyncio.run(use())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        await client.engines("demo")
    assert len(script.bodies) == 3


def test_the_settings_name_the_services_address() -> None:
    settings = Settings.model_validate({"store_url": "http://host:4747/", "token": "t"})
    assert StoreClient.from_settings(settings).url == "http://host:4747"
