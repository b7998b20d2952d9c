"""A provider of other models on a port of loopback: it keeps what it was asked, and says what it is told to."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

KEY = "sk-very-secret-0123456789"
WORDS = ["I ", "am ", "another ", "model."]
Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class FakeProvider:
    """Answers as OpenAI does, with CRLF line ends and comments in its streams, as some providers have them."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.script: list[Behaviour] = []
        self.gate: Callable[[int], Awaitable[None]] | None = None
        """Awaited before each chunk of a stream."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.path)
        behaviour = self.script.pop(0) if self.script else self.answer
        return await behaviour(request, body)

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """What it says, with ids that are nobody's business."""
        if body.get("stream"):
            return await self.stream(request, body)
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1, 2], "logprobs": None}
        used = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
        head = {"id": "chatcmpl-up", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice], "usage": used, "prompt_token_ids": [7]})

    async def stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Word by word."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        for number, word in enumerate(WORDS):
            if self.gate is not None:
                await self.gate(number)
            ends = "stop" if number == len(WORDS) - 1 else None
            part = {"index": 0, "delta": {"content": word}, "finish_reason": ends}
            content = json.dumps({**head, "choices": [part]})
            await response.write(f": a comment\r\ndata: {content}\r\n\r\n".encode())
        await response.write(b"data: [DONE]\r\n\r\n")
        return response


def says(code: int, content: Any, **headers: str) -> Behaviour:
    """An answer with this status."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(content, status=code, headers=headers)

    return answer


@asynccontextmanager
async def fake_provider() -> AsyncGenerator[FakeProvider]:
    """A provider that listens."""
    provider = FakeProvider()
    app = web.Application()
    app.router.add_post("/v1/{route:.*}", provider.handle)
    app.router.add_post("/rollout/{route:.*}", provider.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield provider
    finally:
        await runner.cleanup()
