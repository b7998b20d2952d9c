"""The engine of the chaos runs, which writes down its calls and fails or holds them as its test asks.

The test's folder is `VLLM_TEST_FAULTS` in the engine's environment: a file named after a route makes its next call
fail, and one named `hold-<route>` makes its calls wait until that file is gone; one named `always-<route>` makes the
calls fail until it is gone. `calls.jsonl` has the time and name of each call.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from aiohttp import web

from tests.chaos.parts.engine import DeterministicEngine, main

VARIABLE = "VLLM_TEST_FAULTS"


class FailingEngine(DeterministicEngine):
    """An engine that sleeps, too, as one does that shares its GPU."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__(model_dir)
        self.folder = Path(os.environ[VARIABLE])

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/sleep", self._pause)
        app.router.add_post("/wake_up", self._resume)
        app.middlewares.append(self._failing)  # pyright: ignore[reportArgumentType]  # aiohttp types handlers without `self`
        return app

    @web.middleware
    async def _failing(self, request: web.Request, handler: web.RequestHandler) -> web.StreamResponse:
        name = request.path.strip("/").replace("/", "-")
        always = (self.folder / f"always-{name}").exists()
        failing = always or (self.folder / name).exists()
        answer: web.StreamResponse | None = None
        if not failing or name == "sleep":  # which is done all the same
            answer = await handler(request)  # type: ignore[operator]
        with (self.folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps([time.time(), name]) + "\n")
        while (self.folder / f"hold-{name}").exists():  # noqa: ASYNC110  # another process removes it
            await asyncio.sleep(0.02)
        if failing or answer is None:
            (self.folder / name).unlink(missing_ok=always)
            return web.json_response({"error": "on purpose"}, status=500)
        return answer


if __name__ == "__main__":
    asyncio.run(main(FailingEngine))
