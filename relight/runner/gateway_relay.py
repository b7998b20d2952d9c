"""A relay in the runner between agents and the gateway, which detects model calls that are lost on the way.

Bytes are forwarded in both directions without buffering. The relay also parses HTTP far enough to know which call is
under way. A call that the gateway's side refused, cut, or left unanswered while it was down is a failure of the
platform, unless the same request is answered later (rule 3).
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import blake2b
from time import monotonic
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from relight.errors import StoreError
from relight.transport.keepalive import keep_transport_alive
from relight.types.wire import OpenedAttempt

LOOPBACK = "127.0.0.1"
GATEWAYS = 4
"""So many gateway addresses can be relayed to by one runner."""
CONNECT_SECONDS = 5.0
HELD_BYTES = 2**20
"""Reading pauses while so many bytes wait to be forwarded."""
HEAD_BYTES = 64 * 1024
"""A longer head is forwarded with the host that the agent gave."""
ATTEMPT = re.compile(rb"/attempt/([^/]+)/(?!(?:v1/)+traces(?:\?|$))")
"""The attempt of a model call; spans are sent to the same address, and losing them fails no attempt."""
HOST = re.compile(rb"\r\nhost:[^\r\n]*", re.IGNORECASE)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNAVAILABLE_STATUSES = frozenset({502, 503, 504})
"""Answers of a proxy whose gateway is down, and of a gateway whose store does not answer."""
RECORDED = b"x-relight-recorded"
"""The gateway's header for a failure that it has recorded (`llm_proxy/request_errors.py`)."""
FRAMES = frozenset({b"content-length", b"transfer-encoding"})
Reachable = Callable[[], Awaitable[bool]]


class RelayedCall:
    """A request, from its first byte to the last one of its answer."""

    def __init__(self) -> None:
        self.url = b""
        self.body = blake2b(digest_size=16)
        self.log: CallLog | None = None
        """None: the request is not of an attempt of this runner."""
        self.whole = False
        self.announced = False
        """It has `Expect: 100-continue`: the body follows when it is asked for."""
        self.began_at = monotonic()
        self.lost_at = 0.0
        self.loss = ""
        """How it was lost, if it was."""

    @property
    def key(self) -> object:
        """Equal for equal requests, once the request is complete."""
        return (self.url, self.body.digest()) if self.whole else self


class CallLog:
    """The lost calls of one attempt."""

    def __init__(self, base_url: str, reachable: Reachable) -> None:
        self.base_url = base_url
        """The relay's URL, which the agent gets."""
        self._reachable = reachable
        self._open: set[RelayedCall] = set()
        self._lost: dict[object, list[RelayedCall]] = {}
        """Lost calls by request; of a call and its repetitions the last one."""
        self._asking: set[asyncio.Task[None]] = set()

    def begin(self, call: RelayedCall) -> None:
        call.log = self
        self._open.add(call)

    def answered(self, call: RelayedCall) -> None:
        """The call was answered. An error counts as an answer: the gateway has recorded its own failures."""
        self._open.discard(call)
        self._replace(call)

    def lost(self, call: RelayedCall, loss: str) -> None:
        call.lost_at = monotonic()
        self._replace(call)
        self._add_lost(call, loss)

    def given_up(self, call: RelayedCall) -> None:
        """The agent disconnected before the answer came: this counts as lost only if the gateway does not answer."""
        call.lost_at = call.began_at  # its repetition may arrive before this end is noticed
        self._add_lost(call, "got no answer")
        task = asyncio.get_running_loop().create_task(self._ask(call))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _add_lost(self, call: RelayedCall, loss: str) -> None:
        self._open.discard(call)
        call.loss = loss
        self._lost.setdefault(call.key, []).append(call)

    def _replace(self, call: RelayedCall) -> None:
        """Replace a lost call that this one repeats; only one, since an agent may send equal requests at once."""
        for before in self._lost.get(call.key, ()):
            if before.lost_at <= call.began_at:
                self._forget(before)
                return

    def _forget(self, call: RelayedCall) -> None:
        lost = self._lost.get(call.key, [])
        if call in lost:
            lost.remove(call)

    async def _ask(self, call: RelayedCall) -> None:
        if await self._reachable():
            self._forget(call)

    async def lost_call(self) -> str | None:
        """At the end of the attempt: how a call was lost and never answered; None if there is no such call."""
        for call in list(self._open):
            self.given_up(call)
        while self._asking:
            await asyncio.wait(self._asking)
        return next((call.loss for calls in self._lost.values() for call in calls), None)

    def close(self) -> None:
        """Cancel pending checks."""
        for task in self._asking:
            task.cancel()


class AgentSide(asyncio.Protocol):
    """A connection that an agent opened."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._calls: deque[RelayedCall] = deque()
        """Requests without an answer."""
        self._coming = RelayedCall()
        """The last request that began."""
        self._parser = HttpRequestParser(self)
        self._followed = True
        self._head: bytearray | None = bytearray()
        """The head of the next request until it is complete; None within a request."""
        self._waiting = bytearray()
        """Bytes that came before the connection to the gateway was open."""
        self._gateway: GatewaySide | None = None
        self._connecting: asyncio.Task[None] | None = None
        """Set until the connection to the gateway is open or has failed."""
        self._stays = True
        """Whether both sides keep the connection alive after the answers so far."""
        self._loss = ""
        """How the gateway's side ended, once it has."""

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._connecting = self._origin.start(self._connect())

    def data_received(self, data: bytes) -> None:
        if self._head is None or not self._followed:
            self._pass_on(data)
        else:
            self._head += data
            if self._head.lstrip()[:1].isalpha() and b"\r\n\r\n" not in self._head and len(self._head) < HEAD_BYTES:
                return
            data, self._head = bytes(self._head), None
            self._pass_on(self._origin.addressed(data))
        self._follow(data)

    def pause_writing(self) -> None:
        if self._gateway is not None:
            self._gateway.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._gateway is not None:
            self._gateway.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._origin.forget(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._gateway is not None:
            self._gateway.transport.abort()
        self._end_calls(lambda log, call: log.given_up(call))

    # what httptools calls

    def on_message_begin(self) -> None:
        self._coming = RelayedCall()
        self._calls.append(self._coming)
        self._head = None

    def on_url(self, url: bytes) -> None:
        self._coming.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self._coming.announced = True

    def on_headers_complete(self) -> None:
        if self._parser.get_method() == b"HEAD":  # its answer announces a body and has none
            self._followed = False
        elif (log := self._origin.log_of(self._coming.url)) is not None:
            log.begin(self._coming)

    def on_body(self, body: bytes) -> None:
        self._coming.announced = False
        self._coming.body.update(body)

    def on_message_complete(self) -> None:
        self._coming.whole = True
        self._head = bytearray()
        self._stays = self._parser.should_keep_alive()
        if self._loss:
            self._close()

    # what the gateway's side calls

    def connected(self, gateway: GatewaySide) -> None:
        if self.transport.is_closing():
            gateway.transport.abort()
            return
        self._gateway, self._connecting = gateway, None
        if self._waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self.transport.resume_reading()
            gateway.transport.write(bytes(waiting))

    def answered(self, stays: bool, loss: str | None) -> None:
        """The first call was answered; `loss` is set if the answer is not the gateway's."""
        self._stays = self._stays and stays
        if self._calls:
            call = self._calls.popleft()
            if call.log is not None and loss is not None:
                call.log.lost(call, loss)
            elif call.log is not None:
                call.log.answered(call)

    def gateway_ended(self, loss: str) -> None:
        """The gateway's side closed. Between two calls nothing is lost: the next call opens another connection.

        Otherwise this side closes too, once a request that has begun is complete: only then can its repetition be
        recognized.
        """
        self._gateway = self._connecting = None
        if self._is_idle:
            self.transport.resume_reading()
            return
        self._loss = loss
        if not self._followed or not self._calls or self._coming.whole:
            self._close()
            return
        if self._coming.announced:
            self.transport.write(CONTINUE)
        self.transport.resume_reading()

    @property
    def _is_idle(self) -> bool:
        between = self._head is not None and not self._calls
        return between and self._followed and self._stays

    def leave_alone(self) -> None:
        """Forward bytes without parsing: this is not HTTP that the gateway serves."""
        self._followed = False
        if self._head:
            self._pass_on(bytes(self._head))
        self._head = None
        self._end_calls(lambda log, call: log.answered(call))
        if self._loss:
            self._close()

    def _close(self) -> None:
        self._end_calls(lambda log, call: log.lost(call, self._loss))
        self.transport.close()

    def _end_calls(self, end: Callable[[CallLog, RelayedCall], None]) -> None:
        while self._calls:
            call = self._calls.popleft()
            if call.log is not None:
                end(call.log, call)

    def _follow(self, data: bytes) -> None:
        if not self._followed:
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.leave_alone()

    async def _connect(self) -> None:
        try:
            await self._origin.connect(self)
        except (OSError, TimeoutError):
            self.gateway_ended("was refused")

    def _pass_on(self, data: bytes) -> None:
        if self._loss:
            return
        if self._gateway is not None:
            self._gateway.transport.write(data)
        else:
            self._connecting = self._connecting or self._origin.start(self._connect())
            self._waiting += data
            if len(self._waiting) > HELD_BYTES:
                self.transport.pause_reading()


class GatewaySide(asyncio.Protocol):
    """The connection to the gateway for an agent's connection."""

    def __init__(self, agent: AgentSide) -> None:
        self._agent = agent
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._recorded = False
        self._framed = True
        """Whether the answer has a length; otherwise the end of the connection ends it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        keep_transport_alive(transport)
        self._agent.connected(self)

    def data_received(self, data: bytes) -> None:
        self._agent.transport.write(data)
        if self._parser is not None:
            try:
                self._parser.feed_data(data)
            except (HttpParserError, HttpParserUpgrade):
                self._parser = None
                self._agent.leave_alone()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._recorded |= name == RECORDED
        self._framed |= name in FRAMES

    def on_message_begin(self) -> None:
        self._recorded = self._framed = False

    def on_message_complete(self) -> None:
        parser = cast("HttpResponseParser", self._parser)
        status = parser.get_status_code()
        self._framed = True
        if status >= 200:  # 100 announces the answer
            loss = f"was answered {status}" if status in UNAVAILABLE_STATUSES and not self._recorded else None
            self._agent.answered(parser.should_keep_alive(), loss)

    def pause_writing(self) -> None:
        self._agent.transport.pause_reading()

    def resume_writing(self) -> None:
        self._agent.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self._framed and self._parser is not None:
            self.on_message_complete()
        self._agent.gateway_ended("was cut")


class Origin:
    """A gateway, and the local port on which attempts reach it."""

    def __init__(self, url: SplitResult, logs: dict[bytes, CallLog]) -> None:
        self._host, self._port = url.hostname or LOOPBACK, url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host_line = b"\r\nHost: " + url.netloc.encode()
        self._logs = logs
        self._tasks: set[asyncio.Task[Any]] = set()
        self._agents: set[AgentSide] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self, reserved: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._accept, sock=reserved, backlog=1024)
        self.port = reserved.getsockname()[1]

    async def close(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for agent in list(self._agents):
            agent.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def log_of(self, url: bytes) -> CallLog | None:
        """The log of the attempt that a request's path names."""
        named = ATTEMPT.search(url)
        return self._logs.get(named[1]) if named else None

    def addressed(self, data: bytes) -> bytes:
        """The start of a request with the gateway's host, by which a proxy may route it."""
        head, end, body = data.partition(b"\r\n\r\n")
        return HOST.sub(self._host_line, head, count=1) + end + body

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def connect(self, agent: AgentSide) -> None:
        """Open the connection to the gateway for an agent's connection.

        Raises:
            OSError, TimeoutError: the gateway can't be reached.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            await loop.create_connection(lambda: GatewaySide(agent), self._host, self._port, ssl=self._tls)

    def _accept(self) -> AgentSide:
        agent = AgentSide(self)
        self._agents.add(agent)
        return agent

    def forget(self, agent: AgentSide) -> None:
        self._agents.discard(agent)


class Relay:
    """The relays of a runner's attempts, one for each gateway."""

    def __init__(self, reachable: Reachable) -> None:
        self._reachable = reachable
        self._logs: dict[bytes, CallLog] = {}
        self._origins: dict[str, Origin] = {}
        self._opening = asyncio.Lock()
        self._reserved = [_reserved_port() for _ in range(GATEWAYS)]
        self.ports = [reserved.getsockname()[1] for reserved in self._reserved]
        """The ports that attempts may be given; fixed, since agents are confined to them before the first one."""

    @asynccontextmanager
    async def followed(self, opened: OpenedAttempt) -> AsyncGenerator[CallLog]:
        """Record the calls of an attempt until the end of the block."""
        url = urlsplit(opened.base_url)
        origin = await self._origin(url)
        key = opened.attempt_id.encode()
        log = CallLog(url._replace(scheme="http", netloc=f"{LOOPBACK}:{origin.port}").geturl(), self._reachable)
        self._logs[key] = log
        try:
            yield log
        finally:
            del self._logs[key]
            log.close()

    async def _origin(self, url: SplitResult) -> Origin:
        async with self._opening:
            name = f"{url.scheme}://{url.netloc}"
            if name not in self._origins:
                if not self._reserved:
                    raise StoreError(f"attempts named more than {GATEWAYS} gateways, {name} last; restart the runner")
                origin = Origin(url, self._logs)
                await origin.listen(self._reserved.pop(0))
                self._origins[name] = origin
            return self._origins[name]

    async def close(self) -> None:
        """Close all relays."""
        for origin in self._origins.values():
            await origin.close()
        self._origins.clear()
        for reserved in self._reserved:
            reserved.close()


def _reserved_port() -> socket.socket:
    """A socket that has a free port, and does not listen yet."""
    reserved = socket.socket()
    reserved.bind((LOOPBACK, 0))
    return reserved
