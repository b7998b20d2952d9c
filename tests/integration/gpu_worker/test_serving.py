"""A trained model behind a real vLLM server, as `relight serve` starts it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from relight.gpu_worker.engine import serving_command, serving_environment
from relight.stack.ports import any_free
from tests.integration.gpu_worker.tiny_model import make_tiny_model
from tests.support.orchestration import eventually

BOOT_SECONDS = 300


@pytest.mark.long
async def test_a_served_model_answers_under_its_runs_name_and_has_no_control_routes(tmp_path: Path) -> None:
    port = any_free()
    command = serving_command(make_tiny_model(tmp_path), "calc-1", "127.0.0.1", port, {}, ["--max-model-len", "128"])
    with (tmp_path / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(*command, env=serving_environment(), stdout=log, stderr=log)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

        async def serves() -> bool:
            assert server.returncode is None, (tmp_path / "log").read_text()[-2000:]
            try:
                async with http.get("/health") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        try:
            await eventually(serves, BOOT_SECONDS)
            asked = {"model": "calc-1", "messages": [{"role": "user", "content": "7*8?"}], "max_tokens": 4}
            async with http.post("/v1/chat/completions", json=asked) as answer:
                assert (await answer.json())["usage"]["completion_tokens"] > 0
            async with http.post("/collective_rpc", json={"method": "reload_weights"}) as answer:
                assert answer.status == 404
        finally:
            server.terminate()
            await server.wait()
