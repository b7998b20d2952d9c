"""A real vLLM for tests that only sample from it: started once a session, by the first test that asks for it.

from tests.support.engine import engine_socket  # in a conftest
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from relight.gpu_worker.engine import EngineProcess
from tests.support.tiny_policy import make_tiny_policy

BOOT_SECONDS = 300.0
MAX_MODEL_LEN = 256
TOOLS = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
"""Tools need both, also one that is asked for by its name."""


@pytest.fixture(scope="session")
def engine_socket() -> Generator[Path]:
    """The unix socket on which vLLM serves a tiny random policy as `policy`."""
    folder = Path(tempfile.mkdtemp(prefix="relight-vllm-"))  # short: sockets' paths are limited
    model = make_tiny_policy(folder / "policy")
    ready, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(model, folder, ready, ended)))
    thread.start()  # a loop of its own: those of the tests come and go
    ready.wait()
    try:
        assert thread.is_alive(), (folder / "engine.log").read_text()[-4000:]
        yield folder / "engine.sock"
    finally:
        ended.set()
        thread.join()
        shutil.rmtree(folder)


async def _serve(model: Path, folder: Path, ready: threading.Event, ended: threading.Event) -> None:
    socket, log = folder / "engine.sock", folder / "engine.log"
    engine = await EngineProcess.start(model, socket, log=log, max_model_len=MAX_MODEL_LEN, vllm_keys=TOOLS)
    try:
        await engine.wait_ready(BOOT_SECONDS)
        ready.set()
        await asyncio.to_thread(ended.wait)
    finally:
        await engine.stop()
        ready.set()
