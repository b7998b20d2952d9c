"""A real Temporal dev server for tests: one a session, on free ports, forgotten at the end."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from relight.stack import temporal_server
from relight.stack.ports import any_free
from relight.temporal.server_setup import configure


@contextmanager
def temporal_dev_server(folder: Path, *flags: str, port: int | None = None) -> Generator[str]:
    """Yields the server's address; `flags` are the binary's own."""
    binary = asyncio.run(temporal_server.obtain(folder)).path
    port, ui_port = port or any_free(), any_free()
    command = [*temporal_server.command(binary, folder / "temporal.db", "default", port, ui_port), *flags]
    address = f"127.0.0.1:{port}"
    with (folder / "temporal.log").open("wb") as log:
        server = subprocess.Popen([*command, "--headless"], stdout=log, stderr=subprocess.STDOUT)
    try:
        asyncio.run(_wait_until_ready(address, server))
        yield address
    finally:
        server.terminate()
        server.wait(10)


async def terminate_open_workflows(client: Client) -> None:
    """End what a test left open, and what that started meanwhile."""
    while found := [one async for one in client.list_workflows("ExecutionStatus = 'Running'")]:
        for one in found:
            with suppress(RPCError):  # it has ended, with its parent or by itself; visibility follows
                await client.get_workflow_handle(one.id, run_id=one.run_id).terminate("its test has ended")


async def _wait_until_ready(address: str, server: subprocess.Popen[bytes], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            client = await Client.connect(address, data_converter=pydantic_data_converter)
            await configure(client, set_retention=False)
            return
        except RuntimeError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
