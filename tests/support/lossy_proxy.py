"""An HTTP proxy that loses the answer of every request once, after the service behind it has done the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

FORWARDED = ("Authorization", "Content-Type", "Idempotency-Key", "Relight-Fields")


@dataclass
class Losses:
    """How often each path was asked."""

    asked: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def lossy_proxy(target: str) -> AsyncGenerator[tuple[str, Losses]]:
    """Proxy to `target`; yields its own URL and what it lost."""
    losses = Losses()
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {key: request.headers[key] for key in FORWARDED if key in request.headers}
            async with session.request(request.method, target + request.path_qs, data=body, headers=headers) as answer:
                content = await answer.read()
            losses.asked[request.path] += 1
            if losses.asked[request.path] % 2 and request.transport:
                losses.lost[request.path] += 1
                request.transport.abort()
            return web.Response(body=content, status=answer.status, content_type=answer.content_type)

        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", losses
        finally:
            await runner.cleanup()
