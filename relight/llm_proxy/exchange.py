"""One HTTP exchange with an agent, directly on ASGI: body, key, answer, and whether the agent is still connected.

It uses no framework, since that would cost every model call milliseconds of CPU which the engine on the same host
needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from relight.llm_proxy.dialects import Dialect
from relight.llm_proxy.request_errors import RequestError, bad_key, bad_request, too_large

Scope = Any
Receive = Any
Send = Any

MAX_BODY_BYTES = 16 * 2**20


class ClientDisconnected(Exception):
    """The agent closed the connection before its request was read."""


class Exchange:
    """A request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._authorizations = sum(name == b"authorization" for name, _ in scope["headers"])
        self._receive = receive
        self._send = send
        self.gone = False
        """True once the agent has closed the connection."""
        self.started = False
        """True once part of an answer was sent."""
        self.sent = False
        """True once the whole answer was passed to the network; whether it arrived is unknown."""
        self.ended = False
        self.dialect = Dialect()
        """The API that the agent uses."""

    @property
    def token(self) -> str:
        """The key, in the header of OpenAI's or of Anthropic's clients.

        Raises:
            RequestError: there is none, or there are two.
        """
        if self._authorizations > 1:
            raise bad_request("authorization: two headers came; send one")
        given = self._headers.get(b"authorization", b"").decode("latin-1")
        key = self._headers.get(b"x-api-key", b"").decode("latin-1").strip()
        if not given and key:
            return key
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise bad_key()
        return token.strip()

    @property
    def declared_retry(self) -> bool:
        """True if the client declares that this is a retry."""
        count = self._headers.get(b"x-stainless-retry-count", b"0")
        return count.isdigit() and int(count) > 0

    def header(self, name: bytes, default: str) -> str:
        """A header of the request."""
        return self._headers.get(name, default.encode()).decode("latin-1")

    async def read(self, limit_bytes: int, take: Callable[[int], None], *, encoded: bool = False) -> bytes:
        """The whole body; `take` is called with the size of each part. `encoded`: it may be compressed, and stays so.

        Raises:
            RequestError: it is too long, compressed, or `take` refuses a part.
            ClientDisconnected: it did not come to its end.
        """
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit_bytes:
            raise too_large(limit_bytes)
        if not encoded and self.header(b"content-encoding", "identity") != "identity":
            raise bad_request("content-encoding: send the body uncompressed")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            parts.append(message.get("body", b""))
            take(len(parts[-1]))
            size += len(parts[-1])
            if size > limit_bytes:
                raise too_large(limit_bytes)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def wait_until_gone(self) -> None:
        """Return when the agent closes the connection. To be called once the body is read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = not self.ended

    async def answer(
        self,
        body: bytes,
        status: int = 200,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        content_type: bytes = b"application/json",
    ) -> bool:
        """Send a whole answer. False if the agent had disconnected."""
        await asyncio.sleep(0)  # lets a disconnect that has arrived be seen
        if self.gone:
            return False
        self.started = self.sent = True
        length = str(len(body)).encode()
        head = [(b"content-type", content_type), (b"content-length", length), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        return await self.end()

    async def send_error(self, error: RequestError) -> None:
        """Send an error; as an event if a stream has begun."""
        if self.started:
            await self.event(self.dialect.error_event(error))
            await self.end()
            return
        await self.answer(self.dialect.error_body(error), error.status, error.headers)

    async def event(self, events: bytes) -> None:
        """Send part of a stream."""
        if not self.started:
            self.started = True
            head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": head})
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def last_events(self, events: bytes) -> bool:
        """Send the end of a stream, or a whole one. False if the agent had disconnected."""
        await asyncio.sleep(0)  # lets a disconnect that has arrived be seen
        if self.gone:
            return False
        self.sent = True
        await self.event(events)
        return await self.end()

    async def end(self) -> bool:
        """End the answer; waits until it has left this process. False if the agent had disconnected by then."""
        if self.gone:
            return False
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return not self.gone
