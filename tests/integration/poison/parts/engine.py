"""The deterministic engine, with answers that the prompt asks for: `python -m ...parts.engine`, with vLLM's routes."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import orjson
from aiohttp import web

from tests.chaos.parts import engine

LONGEST_PROMPT = 20_000


class PoisonedEngine(engine.DeterministicEngine):
    """Does as the last message says."""

    async def _answer(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        said = str(body["messages"][-1]["content"])
        if said == "engine-500":
            return error(500, "CUDA error: an illegal memory access was encountered")
        if len(said) > LONGEST_PROMPT:
            return error(400, "This model's maximum context length is 256 tokens. Please reduce your prompt.")
        if said == "engine-stalls":
            await asyncio.sleep(3600)
        if said.startswith("engine-dies "):
            marker = said.removeprefix("engine-dies ")
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass  # once is enough
            else:
                os._exit(139)
        answer = await super()._answer(request)
        return without_ids(answer) if said == "no-token-ids" else answer


def error(status: int, message: str) -> web.Response:
    """In vLLM's shape."""
    described = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return web.json_response({"error": described}, status=status)


def without_ids(answer: web.Response) -> web.Response:
    """As an engine answers that knows nothing of token ids."""
    assert isinstance(answer.body, bytes)
    said = orjson.loads(answer.body)
    said.pop("prompt_token_ids")
    for choice in said["choices"]:
        choice.pop("token_ids")
        choice.pop("logprobs")
    return web.json_response(said)


if __name__ == "__main__":
    asyncio.run(engine.main(PoisonedEngine))
