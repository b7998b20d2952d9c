"""What a client may send, and how slowly, before its request is complete: played over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send

from relight.errors import StackError
from relight.transport.listening import Server, listen
from relight.transport.request_limits import CHECK_SECONDS, MAX_HEAD_BYTES, LimitedHttpProtocol

GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
QUICK = 0.04
"""Seconds between two checks, in place of 2."""
MANY = 2100


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body that came; a request whose client has gone gets nothing."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/slow":
            await asyncio.sleep(10 * QUICK)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(check_seconds: float = CHECK_SECONDS) -> AsyncGenerator[int]:
    """The port of a service."""
    listener = listen("127.0.0.1", 0, "the service", "port", StackError)
    protocol = cast("Any", partial(LimitedHttpProtocol, check_seconds=check_seconds))
    config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", timeout_keep_alive=30)
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def exchange(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send parts; what comes back until the service closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    for part in parts:
        if not answer.done():  # else the service has closed the connection
            writer.write(part)
            await asyncio.wait([answer], timeout=pause)
    try:
        return await asyncio.wait_for(answer, 20)
    finally:
        writer.close()


async def test_headers_that_never_end_are_refused_and_not_kept() -> None:
    async with serving() as port:
        head = b"GET / HTTP/1.1\r\nhost: x\r\n"
        many = b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(70))
        assert (await exchange(port, head, many, pause=0.1)).startswith(b"HTTP/1.1 431")
        assert (await exchange(port, head + b"x: " + b"a" * 70_000)).startswith(b"HTTP/1.1 431")
        assert (await exchange(port, b"GET /" + b"a" * 70_000)).startswith(b"HTTP/1.1 431")


async def test_long_headers_that_are_complete_at_once_are_refused_too() -> None:
    async with serving() as port:
        long = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"
        short = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: " + b"a" * (MAX_HEAD_BYTES - 200) + b"\r\n\r\n"
        assert (await exchange(port, long)).startswith(b"HTTP/1.1 431")
        assert (await exchange(port, short)).startswith(b"HTTP/1.1 200")


async def test_half_a_head_is_given_up_and_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(QUICK) as port:
        assert (await exchange(port, GET[:-4])).startswith(b"HTTP/1.1 408")
        dripped = [bytes([byte]) for byte in GET[:30]]
        assert (await exchange(port, *dripped, pause=QUICK / 2)).startswith(b"HTTP/1.1 408")
        assert await exchange(port) == b""


async def test_a_body_that_stalls_ends_its_connection_and_one_that_goes_on_does_not() -> None:
    async with serving(QUICK) as port:
        assert await exchange(port, POST, b"12345") == b""
        slow = POST.replace(b"host", b"connection: close\r\nhost")
        parts = [bytes([byte]) for byte in b"1234567890"]
        assert (await exchange(port, slow, *parts, pause=2 * QUICK)).endswith(b"1234567890")


async def test_a_client_is_not_blamed_for_a_service_that_does_not_read() -> None:
    size = 1_000_000
    head = b"POST /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
    async with serving(QUICK) as port:
        assert (await exchange(port, head + b"a" * size)).startswith(b"HTTP/1.1 200")


async def test_an_idle_connection_between_two_requests_stays() -> None:
    async with serving(QUICK) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(GET)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(10 * QUICK)
        writer.close()


async def test_a_service_answers_beside_thousands_of_half_open_requests() -> None:
    async with serving() as port:
        halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MANY)]
        try:
            for _, writer in halves:
                writer.write(GET[:10])
            answer = await exchange(port, GET.replace(b"host", b"connection: close\r\nhost"))
            assert answer.startswith(b"HTTP/1.1 200")
        finally:
            for _, writer in halves:
                writer.close()
