"""The network between pairs of processes: a TCP proxy on every edge, which can be slowed, cut, or made half-open.

Edges are `runner->store`, `agents->gateway`, `store->postgres` and so on. Each process of the stack gets addresses of
its own (`Network.overrides`), so an edge is one pair's. A proxy can't lose packets: where bytes vanish, the kernel
of the proxy has acknowledged them, so TCP itself never notices. Only a process that waits for an answer does.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qs, urlsplit

from relight.settings import Settings
from relight.stack.postgres_roles import PASSWORD_FILE, SERVICE

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
USERS = {
    "store": ("store", "gateway", "runner", "runner-2"),
    "gateway": ("agents",),
    "temporal": ("runner", "runner-2", "orchestrator", "gpu-worker"),
    "postgres": ("store", "orchestrator", "gpu-worker"),
}
EDGES = tuple(f"{user}->{used}" for used, users in USERS.items() for user in users if user != used)


class Way(StrEnum):
    """A direction, as the one who connects sees it."""

    UP = "up"
    DOWN = "down"


BOTH = frozenset(Way)


@dataclass(frozen=True)
class Target:
    """Who is at the other end: a host and port, or a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def of(cls, url: str) -> Target:
        """From `http://host:port`, `host:port` or Postgres' `...?host=/folder`."""
        parts = urlsplit(url if "://" in url else f"tcp://{url}")
        folder = parse_qs(parts.query).get("host", [""])[0]
        if folder.startswith("/"):
            return cls(path=f"{folder}/.s.PGSQL.{parts.port or 5432}")
        return cls(parts.hostname or LOOPBACK, parts.port or 0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.path:
            return await asyncio.open_unix_connection(self.path)
        return await asyncio.open_connection(self.host, self.port)


@dataclass(frozen=True)
class Conditions:
    """What an edge does to the bytes of both ways."""

    latency_seconds: float = 0.0
    jitter_seconds: float = 0.0
    bytes_per_second: float | None = None
    stalled: bool = False
    """Nothing passes, and nothing is lost: it arrives when the conditions changes."""
    close_seconds: float = 0.0
    """How long the end of a connection takes to be passed on."""
    lost: frozenset[Way] = frozenset()
    """Ways on which new connections are dead from the start."""


class Link:
    """One connection through a proxy."""

    def __init__(self, edge: Edge, near: asyncio.StreamWriter) -> None:
        self.edge = edge
        self.dead: set[Way] = set(edge.conditions.lost)
        """Directions on which all bytes are lost from then on: what is left of a connection whose packets were lost."""
        self._writers = [near]

    async def carry(self, near_reader: asyncio.StreamReader) -> None:
        """Carry bytes both ways until both have ended."""
        near = self._writers[0]
        try:
            far_reader, far = await self.edge.target.connect()
        except OSError:
            self.reset()
            return
        self._writers.append(far)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(Way.UP, near_reader, far))
                group.create_task(self._pump(Way.DOWN, far_reader, near))
        except* OSError:
            self.reset()
        finally:
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        """End both connections with a reset."""
        for writer in self._writers:
            with suppress(OSError):
                opened: socket.socket | None = writer.get_extra_info("socket")
                if opened is not None and opened.family != socket.AF_UNIX:
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            writer.transport.abort()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self.edge.transfer(len(data))
            if way in self.dead:
                self.edge.lost_bytes += len(data)
                continue
            writer.write(data)
            await writer.drain()
        await self.edge.transfer(0)
        if way in self.dead:
            await asyncio.Event().wait()  # an end is a packet too
        await asyncio.sleep(self.edge.conditions.close_seconds)
        if writer.can_write_eof():
            writer.write_eof()


class Edge:
    """The proxy between two processes."""

    def __init__(self, name: str, draw: random.Random) -> None:
        self.name = name
        self.target = Target()
        self.conditions = Conditions()
        self.links: set[Link] = set()
        self.opened = 0
        """Connections so far."""
        self.lost_bytes = 0
        self._draw = draw
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = _bound()
        self._server: asyncio.Server | None = None
        self.port: int = self._socket.getsockname()[1]

    async def listen(self) -> None:
        """Take connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=self._socket, backlog=512)

    async def transfer(self, size_bytes: int) -> None:
        """Wait as long as so many bytes take under these conditions."""
        while self.conditions.stalled:
            await self._changed.wait()
        conditions = self.conditions
        seconds = conditions.latency_seconds + conditions.jitter_seconds * self._draw.random()
        if conditions.bytes_per_second:
            seconds += size_bytes / conditions.bytes_per_second
        if seconds:
            await asyncio.sleep(seconds)

    def change(self, conditions: Conditions) -> None:
        """From now on."""
        self.conditions = conditions
        self._changed.set()
        self._changed = asyncio.Event()

    def lose(self, ways: frozenset[Way] = BOTH, *, new_too: bool = False) -> None:
        """Make all connections half-open: bytes are lost from then on, without a reset or an end; new ones work."""
        for link in self.links:
            link.dead |= ways
        self.change(Conditions(lost=ways if new_too else frozenset()))

    def cut(self) -> None:
        """Reset all connections; new ones work."""
        for link in list(self.links):
            link.reset()

    async def refuse(self) -> None:
        """Reset all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._socket = _bound(self.port)  # bound and not listening: connections are refused
        self.cut()

    async def heal(self) -> None:
        """Fair conditions. Connections that are half-open stay so."""
        self.change(Conditions())
        await self.listen()

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs it as one"
        self._tasks.add(task)
        link = Link(self, writer)
        self.links.add(link)
        self.opened += 1
        try:
            await link.carry(reader)
        except asyncio.CancelledError:  # the proxy ends; asyncio would log it
            link.reset()
        finally:
            self.links.discard(link)
            self._tasks.discard(task)


def _bound(port: int = 0) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind((LOOPBACK, port))
    opened.setblocking(False)
    return opened


@dataclass
class Network:
    """All edges of a stack."""

    edges: Mapping[str, Edge]
    real: dict[str, Target] = field(default_factory=dict[str, Target])
    """Where the services are, once the stack knows."""

    def overrides(self, title: str, settings: Settings) -> dict[str, str]:
        """The addresses that a process of the stack is told."""
        self._learn(settings)
        passwords = settings.home / PASSWORD_FILE
        postgres = f"postgresql://{SERVICE}@{{}}/postgres?sslmode=disable&passfile={passwords}"
        addresses = {
            f"{title}->store": ("RELIGHT_STORE_URL", "http://{}"),
            f"{title}->temporal": ("TEMPORAL_ADDRESS", "{}"),
            f"{title}->postgres": ("RELIGHT_POSTGRES_URL", postgres),
        }
        roads = {
            variable: pattern.format(f"{LOOPBACK}:{self.edges[name].port}")
            for name, (variable, pattern) in addresses.items()
            if name in self.edges
        }
        if title != "gateway":  # the store hands it to agents
            roads["RELIGHT_GATEWAY_URL"] = f"http://{LOOPBACK}:{self.edges['agents->gateway'].port}"
        return roads

    def _learn(self, settings: Settings) -> None:
        urls = {
            "store": settings.store_url,
            "gateway": settings.gateway_url,
            "temporal": settings.temporal_address,
            "postgres": settings.postgres_url or "",
        }
        self.real = {name: Target.of(url) for name, url in urls.items()}
        for name, edge in self.edges.items():
            edge.target = self.real[name.partition("->")[2]]

    async def heal(self) -> None:
        """Fair conditions everywhere."""
        for edge in self.edges.values():
            await edge.heal()


@asynccontextmanager
async def open_network(seed: int = 0) -> AsyncGenerator[Network]:
    """Proxies for all edges, in fair conditions."""
    network = Network({name: Edge(name, random.Random(f"{seed} {name}")) for name in EDGES})
    try:
        for edge in network.edges.values():
            await edge.listen()
        yield network
    finally:
        for edge in network.edges.values():
            await edge.close()
