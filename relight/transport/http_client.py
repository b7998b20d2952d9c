"""An HTTP/1.1 client for the most frequent requests: from the gateway to engines, and from gateway and runners to the
store.

aiohttp would cost half a millisecond of CPU for each request beside a busy engine with cold caches, five times as much.
httptools parses; connections carry one request at a time and are pooled. There is no TLS, no redirects, no cookies and
no compression: both servers are Relight's, on loopback or a private network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from relight.transport.keepalive import keep_transport_alive

CONNECT_SECONDS = 5.0
BUFFERED_BYTES = 2**20
"""Reading pauses while so many bytes are unread."""


class BrokenError(ConnectionError):
    """The connection ended before the answer, or the answer is invalid."""


class Connection(asyncio.Protocol):
    """One connection, with the answer that arrives on it."""

    def __init__(self) -> None:
        self.status = 0
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._complete = True
        self._keep_alive = True
        self._broken: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """True if the answer is complete and another request may follow."""
        return self._complete and self._keep_alive and self._broken is None

    async def send(self, request: bytes) -> None:
        """Send a request, and wait for the head of its answer."""
        self._parser = HttpResponseParser(self)
        self._complete = False
        self.status = 0
        self._pieces.clear()
        self._buffered = 0
        cast("asyncio.Transport", self._transport).write(request)
        while not self.status:
            await self._more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer's body as it comes in."""
        while self._pieces or not self._complete:
            if self._pieces:
                yield self._take()
            else:
                await self._more()

    async def read(self) -> bytes:
        """The answer's whole body."""
        taken: list[bytes] = []
        while self._pieces or not self._complete:
            if self._pieces:
                taken.append(self._take())
            else:
                await self._more()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def close(self) -> None:
        """Close the connection, which cancels the request at the server."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self) -> bytes:
        piece = self._pieces.popleft()
        if self._buffered >= BUFFERED_BYTES > self._buffered - len(piece):
            cast("asyncio.Transport", self._transport).resume_reading()
        self._buffered -= len(piece)
        return piece

    async def _more(self) -> None:
        if self._broken is not None:
            raise BrokenError(self._broken)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._wake()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_transport_alive(transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._break("an answer without a request")
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._break(f"not HTTP: {error}")
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(str(exc) if exc else "the server closed the connection")

    # what httptools calls

    def on_headers_complete(self) -> None:
        parser = cast("HttpResponseParser", self._parser)
        self.status = parser.get_status_code()
        self._keep_alive = parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        if self._buffered < BUFFERED_BYTES <= self._buffered + len(body):
            cast("asyncio.Transport", self._transport).pause_reading()
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        self._complete = True


class HttpClient:
    """Connections to one server, by `unix:/path.sock` or `http://host:port`."""

    idle_seconds = 3.0
    """uvicorn closes idle connections after 5 s; this client closes them first, so that none breaks in use."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._path = url.removeprefix("unix:") if url.startswith("unix:") else None
        parts = urlsplit("http://localhost" if self._path else url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._prefix = parts.path.rstrip("/")
        lines = {"host": parts.netloc, "content-type": "application/json", **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()

    @asynccontextmanager
    async def request(self, method: str, path: str, content: bytes = b"") -> AsyncGenerator[Connection]:
        """Send a request; its answer is read inside. Leaving before it is read drops the connection.

        Raises:
            OSError: the server can't be reached, or the connection broke.
            TimeoutError: it can't be reached in time.
        """
        connection = self._pooled() or await self._connect()
        self._busy.add(connection)
        try:
            head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}content-length: {len(content)}\r\n\r\n"
            await connection.send(head.encode("latin-1") + content)
            yield connection
        finally:
            self._busy.discard(connection)
            if connection.reusable:
                connection.idle_since = monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    def _pooled(self) -> Connection | None:
        oldest = monotonic() - self.idle_seconds
        while self._idle and (self._idle[0].idle_since < oldest or not self._idle[0].reusable):
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            if self._path is not None:
                _, connection = await loop.create_unix_connection(Connection, self._path)
            else:
                _, connection = await loop.create_connection(Connection, self._host, self._port)
        return connection

    def break_off(self) -> None:
        """Close the connections that carry a request: callers that wait for an answer get an error."""
        for connection in list(self._busy):
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.popleft().close()
