"""Servers as processes of their own, for tests and benchmarks: on a free port, answering, gone at the end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

START_SECONDS = 120.0
STOP_SECONDS = 15.0
TOKEN = "admin-token"
STORE = (
    "import sys, uvloop; from relight.settings import load_settings; from relight.store_api.server import serve;"
    " uvloop.run(serve(load_settings(), '127.0.0.1', int(sys.argv[1])))"
)


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def serving(
    command: Sequence[str | Path], health_url: str, log: Path, environment: Mapping[str, str]
) -> AsyncGenerator[int]:
    """A server; yields its pid once its health URL answers 200."""
    output = await asyncio.to_thread(log.open, "w")
    with output:
        child = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
    try:
        if not await _answers(health_url, child):
            said = await asyncio.to_thread(log.read_text, errors="replace")
            raise RuntimeError(f"{command[0]} ended as it started: {said[-3000:]}")
        yield child.pid
    finally:
        if child.returncode is None:
            child.terminate()
            try:
                await asyncio.wait_for(child.wait(), STOP_SECONDS)
            except TimeoutError:
                child.kill()
        await child.wait()


@asynccontextmanager
async def store_process(database_url: str, log: Path, port: int | None = None) -> AsyncGenerator[tuple[str, int]]:
    """Our store service over a migrated database, as `relight store` runs it; yields its URL and pid."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {"RELIGHT_POSTGRES_URL": database_url, "RELIGHT_STORE_URL": url, "RELIGHT_TOKEN": TOKEN}
    command = (sys.executable, "-c", STORE, str(port))
    async with serving(command, f"{url}/healthz", log, os.environ | settings) as pid:
        yield url, pid


async def _answers(url: str, child: asyncio.subprocess.Process) -> bool:
    """Wait until a server answers; False: it ended."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_SECONDS):
        while child.returncode is None:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return True
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    return False
