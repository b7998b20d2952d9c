"""An engine without a model: `python -m tests.chaos.parts.engine --model DIR --uds PATH ...`, with vLLM's routes.

The tokens of an answer follow from its seed and the weights that are loaded, so that a run's rewards, and with them
its weights, depend on which version sampled what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.chaos.parts import weights
from tests.support.fake_engine import whole

CALL_SECONDS = 0.02


class DeterministicEngine:
    """Serves the weights of a directory."""

    def __init__(self, model_dir: Path) -> None:
        self.weights = weights.read(model_dir)
        self.open = asyncio.Event()
        self.open.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._nothing)
        app.router.add_post("/pause", self._pause)
        app.router.add_post("/resume", self._resume)
        app.router.add_post("/collective_rpc", self._reload)
        app.router.add_post("/reset_prefix_cache", self._nothing)
        app.router.add_post("/v1/chat/completions", self._answer)
        return app

    async def _nothing(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _pause(self, request: web.Request) -> web.Response:
        self.open.clear()
        return web.json_response({})

    async def _resume(self, request: web.Request) -> web.Response:
        self.open.set()
        return web.json_response({})

    async def _reload(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.weights = weights.read(Path(body["kwargs"]["weights_path"]))
        return web.json_response({"results": [None]})

    async def _answer(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        await self.open.wait()
        await asyncio.sleep(CALL_SECONDS)
        drawn = weights.mixed(self.weights, str(body["seed"]).encode())
        body["seed"] = int.from_bytes(drawn[:4], "little")
        return web.json_response({**whole(body, chat=True), "prompt_token_ids": prompt_ids(body["messages"])})


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """Tokens of a prompt: the same for the same messages, else others."""
    return list(weights.mixed(json.dumps(messages).encode())[:12])


async def main(engine: type[DeterministicEngine] = DeterministicEngine) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--uds", required=True)
    arguments, _ = parser.parse_known_args()
    runner = web.AppRunner(engine(arguments.model).app())
    await runner.setup()
    await web.UnixSite(runner, arguments.uds).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
