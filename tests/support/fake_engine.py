"""A scripted engine on a unix socket whose answers have the shapes of vLLM 0.24, recorded from a real one.

A choice's tokens follow from the seed, so that a repeated call can be told from a new one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

PROMPT = [3, 28, 15, 29, 36, 1, 4]
Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def token_ids(seed: int, choice: int, count: int) -> list[int]:
    """What the engine samples."""
    return [10 + (seed + 7 * choice + 3 * position) % 200 for position in range(count)]


def logprob(token: int) -> float:
    """Its logprob."""
    return -token / 100


def text(token: int) -> str:
    """Its text."""
    return f"<{token}>"


class FakeEngine:
    """Counts and keeps the requests; `behave` replaces what it does for the next calls, one each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"unix:{path}"
        self.requests: list[dict[str, Any]] = []
        self.counted: list[dict[str, Any]] = []
        """Prompts whose tokens were counted."""
        self.aborted = asyncio.Event()
        self.arrived = asyncio.Event()
        self.script: list[Behaviour] = []
        self.token_gate: Callable[[int], Awaitable[None]] | None = None
        """Awaited before each token of a stream."""
        self._runner: web.AppRunner | None = None

    def behave(self, *behaviours: Behaviour) -> None:
        """The next calls get these."""
        self.script += behaviours

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_post("/v1/{route:.*}", self._handle)
        app.router.add_post("/tokenize", self._count)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        self.path.unlink(missing_ok=True)
        await web.UnixSite(self._runner, str(self.path)).start()

    async def stop(self) -> None:
        """Refuse connections from now on, and drop those that are open."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.path.unlink(missing_ok=True)

    async def _count(self, request: web.Request) -> web.StreamResponse:
        self.counted.append(await request.json())
        return web.json_response({"count": len(PROMPT), "max_model_len": 256, "tokens": PROMPT})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.arrived.set()
        behaviour = self.script.pop(0) if self.script else self.answer
        try:
            return await behaviour(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted.set()
            raise

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """What vLLM does."""
        chat = request.path.endswith("chat/completions")
        if body.get("stream"):
            return await self.stream(request, body, chat)
        return web.json_response(whole(body, chat))

    async def stream(self, request: web.Request, body: dict[str, Any], chat: bool) -> web.StreamResponse:
        """Chunk by chunk."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, chunk in enumerate(chunks(body, chat)):
            if self.token_gate is not None:
                await self.token_gate(number)
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def fake_engine(path: Path) -> AsyncGenerator[FakeEngine]:
    """An engine that listens."""
    engine = FakeEngine(path)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The connection breaks before an answer."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(3600)
    raise AssertionError


def status(code: int, message: str = "no") -> Behaviour:
    """An error in vLLM's shape."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": message, "type": "BadRequestError", "param": None, "code": code}
        return web.json_response({"error": error}, status=code)

    return answer


def count_of(body: dict[str, Any]) -> int:
    return min(body.get("max_tokens", 4), 64)


def chat_logprobs(tokens: list[int]) -> dict[str, Any]:
    return {
        "content": [
            {"token": text(t), "logprob": logprob(t), "bytes": list(text(t).encode()), "top_logprobs": []}
            for t in tokens
        ]
    }


def completion_logprobs(tokens: list[int]) -> dict[str, Any]:
    return {
        "text_offset": [0] * len(tokens),
        "token_logprobs": [logprob(t) for t in tokens],
        "tokens": [text(t) for t in tokens],
        "top_logprobs": [{text(t): logprob(t)} for t in tokens],
    }


def id_of(body: dict[str, Any], chat: bool) -> str:
    """The answer's id; calls have different seeds."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{body['seed']:x}"


def whole(body: dict[str, Any], chat: bool) -> dict[str, Any]:
    """An answer in one piece."""
    choices: list[dict[str, Any]] = []
    for index in range(body.get("n", 1)):
        tokens = token_ids(body["seed"], index, count_of(body))
        said = "".join(map(text, tokens))
        common = {"index": index, "finish_reason": "length", "stop_reason": None, "token_ids": tokens}
        if chat:
            message = {"role": "assistant", "content": said, "refusal": None, "reasoning": None}
            choices.append({**common, "message": message, "logprobs": chat_logprobs(tokens), "routed_experts": None})
        else:
            ids = {"prompt_logprobs": None, "prompt_token_ids": PROMPT}
            choices.append({**common, **ids, "text": said, "logprobs": completion_logprobs(tokens)})
    used = {"prompt_tokens": len(PROMPT), "total_tokens": 11, "completion_tokens": 4, "prompt_tokens_details": None}
    head = {"id": id_of(body, chat), "created": 1795217597, "model": body["model"]}
    answer = {
        **head,
        "object": "chat.completion" if chat else "text_completion",
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": "vllm-0.24.0-10a9566f",
        "usage": used,
        "kv_transfer_params": None,
    }
    return {**answer, "prompt_logprobs": None, "prompt_token_ids": PROMPT, "prompt_text": None} if chat else answer


def chunks(body: dict[str, Any], chat: bool) -> list[dict[str, Any]]:
    """The chunks of a stream, choices in turn."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": id_of(body, chat), "object": kind, "created": 1795217599, "model": body["model"]}
    made: list[dict[str, Any]] = []
    numbers = range(body.get("n", 1))
    if chat:
        for index in numbers:
            delta = {"role": "assistant", "content": ""}
            first = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            made.append({**head, "choices": [first], "prompt_token_ids": PROMPT, "prompt_text": None})
    count = count_of(body)
    for position in range(count):
        for index in numbers:
            token = token_ids(body["seed"], index, count)[position]
            ends = "length" if position == count - 1 else None
            part: dict[str, Any] = {"index": index, "finish_reason": ends, "token_ids": [token]}
            if chat:
                part |= {"delta": {"content": text(token)}, "logprobs": chat_logprobs([token])}
            else:
                part |= {"text": text(token), "logprobs": completion_logprobs([token]), "stop_reason": None}
                part["prompt_token_ids"] = PROMPT if position == 0 else None
            made.append({**head, "choices": [part]})
    if (body.get("stream_options") or {}).get("include_usage"):
        used = {"prompt_tokens": len(PROMPT), "total_tokens": 11, "completion_tokens": 4}
        made.append({**head, "choices": [], "usage": used, "system_fingerprint": "vllm-0.24.0-10a9566f"})
    return made
