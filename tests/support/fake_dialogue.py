"""What a scripted engine says where a test wants more than text: reasoning and tool calls, whole and in chunks."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from relight.testing.answers import deltas_of
from tests.support.fake_engine import PROMPT, Behaviour, chat_logprobs, token_ids

HEAD = {"id": "chatcmpl-1a2b", "created": 1795217597, "model": "policy"}
USED = {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}


def tool_call(number: int, name: str, arguments: str) -> dict[str, Any]:
    """As vLLM writes it."""
    return {"id": f"chatcmpl-tool-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def whole_answer(message: dict[str, Any], finish_reason: str, stop_reason: Any, tokens: list[int]) -> dict[str, Any]:
    """An answer in one piece."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, **message},
        "logprobs": chat_logprobs(tokens),
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "token_ids": tokens,
    }
    return {**HEAD, "object": "chat.completion", "choices": [choice], "prompt_token_ids": PROMPT, "usage": USED}


def chunks_of(message: dict[str, Any], finish_reason: str, stop_reason: Any, seed: int) -> list[dict[str, Any]]:
    """The chunks of a stream, one token each; the last one ends it."""
    head = {**HEAD, "object": "chat.completion.chunk"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    chunks: list[dict[str, Any]] = [{**head, "choices": [first], "prompt_token_ids": PROMPT}]
    deltas = [*deltas_of(message, size=3), {}]
    for position, delta in enumerate(deltas):
        token = token_ids(seed, 0, len(deltas))[position]
        part = {"index": 0, "delta": delta, "logprobs": chat_logprobs([token]), "token_ids": [token]}
        last = position == len(deltas) - 1
        ending = {"finish_reason": finish_reason, "stop_reason": stop_reason} if last else {"finish_reason": None}
        chunks.append({**head, "choices": [part | ending]})
    return [*chunks, {**head, "choices": [], "usage": USED}]


def saying(message: dict[str, Any], finish_reason: str = "stop", stop_reason: Any = None) -> Behaviour:
    """An engine that says this, streamed or not as it is asked to."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            tokens = token_ids(body["seed"], 0, 6)
            return web.json_response(whole_answer(message, finish_reason, stop_reason, tokens))
        assert body["stream_options"] == {"include_usage": True}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks_of(message, finish_reason, stop_reason, body["seed"]):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer
