"""A network that delivers requests twice or late, and loses answers: an HTTP proxy before the store service."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.chaos.network import LOOPBACK, Target
from tests.support.lossy_proxy import FORWARDED

CONFLICT = 409


@dataclass(frozen=True)
class Request:
    """One that can be delivered again."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def what(self) -> str:
        """Its path without what all have in common."""
        return self.path.rpartition("/relight")[2]


@dataclass
class Deliveries:
    """What is done to requests that change something, and what came of it."""

    target: Target
    session: aiohttp.ClientSession
    draw: random.Random
    twice_share: float = 0.0
    late_share: float = 0.0
    lost_share: float = 0.0
    """Of answers: the work is done, and its caller is not told."""
    kept: list[Request] = field(default_factory=list[Request])
    """To be delivered late."""
    counts: Counter[str] = field(default_factory=Counter[str])
    answers: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """To late deliveries, by path and status."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Requests of whom they belong to that met a newer attempt: 409, by path."""

    async def handle(self, incoming: web.Request) -> web.StreamResponse:
        """Pass a request on, once or twice."""
        headers = {key: incoming.headers[key] for key in FORWARDED if key in incoming.headers}
        request = Request(incoming.method, incoming.path_qs, await incoming.read(), headers)
        times = 2 if request.method == "POST" and self._drawn("twice", self.twice_share) else 1
        answers = await asyncio.gather(*(self.deliver(request) for _ in range(times)))
        status, content = answers[-1]
        if status == CONFLICT:
            self.refused[request.what] += 1
        if request.method == "POST" and self._drawn("late", self.late_share):
            self.kept.append(request)
        if request.method == "POST" and self._drawn("lost", self.lost_share) and incoming.transport:
            incoming.transport.abort()
        return web.Response(body=content, status=status, content_type="application/json")

    async def deliver(self, request: Request) -> tuple[int, bytes]:
        """Deliver a request."""
        url = f"http://{self.target.host}:{self.target.port}{request.path}"
        async with self.session.request(
            request.method, url, data=request.body or None, headers=request.headers
        ) as answer:
            return answer.status, await answer.read()

    async def deliver_late(self) -> None:
        """Deliver what was kept once more, in another order."""
        kept, self.kept = self.kept, []
        self.draw.shuffle(kept)
        for request in kept:
            status, _ = await self.deliver(request)
            self.answers[request.what, status] += 1

    def _drawn(self, what: str, share: float) -> bool:
        drawn = self.draw.random() < share
        self.counts[what] += drawn
        return drawn


@asynccontextmanager
async def deliveries(
    target: Target, seed: int, *, twice_share: float = 0.0, late_share: float = 0.0, lost_share: float = 0.0
) -> AsyncGenerator[tuple[Target, Deliveries]]:
    """Yields where to send requests to, and what becomes of them."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        delivered = Deliveries(target, session, random.Random(seed), twice_share, late_share, lost_share)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", delivered.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
        try:
            yield Target(LOOPBACK, runner.addresses[0][1]), delivered
        finally:
            await runner.cleanup()
