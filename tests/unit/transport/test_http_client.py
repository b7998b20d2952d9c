"""The gateway's own HTTP client, against a server whose every byte is scripted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.transport.http_client import BUFFERED_BYTES, BrokenError, HttpClient
from tests.support.examples import examples

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """Answers each request on a connection with the next of `answers`, in the pieces given."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.patient = True
        """Waits for the client to close."""
        self.gone = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                for piece in self.answers.pop(0):
                    writer.write(piece)
                    await writer.drain()
            if self.patient:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.gone.set()
        writer.close()


@asynccontextmanager
async def client_of(path: Path, server: Server) -> AsyncGenerator[HttpClient]:
    """A client of a server that listens on a unix socket."""
    listener = await asyncio.start_unix_server(server.handle, path)
    client = HttpClient(f"unix:{path}")
    try:
        yield client
    finally:
        client.close()
        listener.close()


async def ask(client: HttpClient, content: bytes = b"{}") -> tuple[int, bytes]:
    async with client.request("POST", "/v1/x", content) as answer:
        return answer.status, await answer.read()


async def test_a_connection_is_used_again_once_its_answer_is_read(tmp_path: Path):
    server = Server([OK], [OK], [OK])
    async with client_of(tmp_path / "s", server) as client:
        assert [await ask(client) for _ in range(3)] == [(200, b"hi")] * 3
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\n")
    assert server.requests[0].endswith(b"content-length: 2\r\n\r\n{}")


async def test_requests_at_once_have_connections_of_their_own(tmp_path: Path):
    server = Server(*[[OK]] * 8)
    async with client_of(tmp_path / "s", server) as client:
        await asyncio.gather(*(ask(client) for _ in range(4)))
        await asyncio.gather(*(ask(client) for _ in range(4)))
    assert 1 < server.connections <= 4


@given(st.binary(max_size=200), st.lists(st.integers(1, 300), max_size=6), st.booleans())
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_an_answer_is_read_whole_in_whatever_pieces_it_comes(
    tmp_path: Path, body: bytes, cuts: list[int], chunked: bool
):
    if chunked:
        framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
        whole = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + framed
    else:
        whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    edges = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(edges)]
    async with client_of(tmp_path / "s", Server(pieces, [OK])) as client:
        assert await ask(client) == (200, body)
        assert await ask(client) == (200, b"hi")


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"HTTP/1.1 200 OK\r\ncontent-le"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"],
        [b"this is no HTTP\r\n\r\n"],
    ],
)
async def test_an_incomplete_answer_is_an_error(tmp_path: Path, pieces: list[bytes]):
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.writelines(pieces)
        writer.close()

    listener = await asyncio.start_unix_server(handle, tmp_path / "s")
    client = HttpClient(f"unix:{tmp_path / 's'}")
    with pytest.raises(BrokenError):
        await ask(client)
    listener.close()


async def test_a_refused_connection_is_an_os_error(tmp_path: Path):
    with pytest.raises(OSError):
        await ask(HttpClient(f"unix:{tmp_path / 'nothing'}"))


@pytest.mark.parametrize("announced", [False, True])
async def test_a_connection_that_the_server_closed_is_replaced(tmp_path: Path, announced: bool):
    answer = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") if announced else OK
    server = Server([answer])
    async with client_of(tmp_path / "s", server) as client:
        server.patient = announced
        await ask(client)
        await server.gone.wait()
        await asyncio.sleep(0.05)  # for the closing to arrive
        server.answers = [[OK]]
        assert await ask(client) == (200, b"hi")
    assert server.connections == 2


async def test_a_connection_that_was_idle_for_long_is_not_used(tmp_path: Path):
    server = Server([OK], [OK])
    async with client_of(tmp_path / "s", server) as client:
        await ask(client)
        client.idle_seconds = -1.0
        await ask(client)
    assert server.connections == 2


async def test_closing_before_the_answer_is_read_drops_the_connection(tmp_path: Path):
    server = Server([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"], [OK])
    async with client_of(tmp_path / "s", server) as client:
        async with client.request("POST", "/", b"{}") as answer:
            assert await anext(aiter(answer.pieces())) == b"half"
        await server.gone.wait()
        server.gone.clear()
        assert await ask(client) == (200, b"hi")


async def test_a_slow_reader_causes_back_pressure_on_the_server(tmp_path: Path):
    body = b"x" * 2**16
    total = 64 * BUFFERED_BYTES // len(body)
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (total * len(body)))
        for _ in range(total):
            writer.write(body)
            await writer.drain()
            sent += len(body)

    listener = await asyncio.start_unix_server(handle, tmp_path / "s")
    client = HttpClient(f"unix:{tmp_path / 's'}")
    async with client.request("POST", "/", b"{}") as answer:
        before = -1
        while sent != before:  # until the server is stuck
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 8 * BUFFERED_BYTES
        assert len(await answer.read()) == total * len(body)
    client.close()
    listener.close()


async def test_a_client_of_a_port_may_have_headers_and_a_path_of_its_own():
    server = Server([OK])
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    client = HttpClient(f"http://127.0.0.1:{port}/base/", {"authorization": "Bearer x"})
    assert await ask(client) == (200, b"hi")
    assert server.requests[0].startswith(f"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n".encode())
    assert b"authorization: Bearer x\r\n" in server.requests[0]
    client.close()
    listener.close()
