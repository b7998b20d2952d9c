"""A `relight up` of its own for a test: as a process, with its events read from it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from relight.stack.pidfd import open_process

BOOT_SECONDS = 120
FOREIGN = ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "RELIGHT_POSTGRES_URL", "RELIGHT_STORE_URL", "RELIGHT_GATEWAY_URL")


class Up:
    """A `relight up --json` that runs."""

    def __init__(self, process: Process, home: Path) -> None:
        self.process = process
        self.home = home
        self.events: list[dict[str, Any]] = []

    async def until(self, kind: str, name: str | None = None) -> dict[str, Any]:
        """The next event of that kind.

        Raises:
            EOFError: it ended first; with what it said.
        """
        assert self.process.stdout
        async with asyncio.timeout(BOOT_SECONDS):
            while line := await self.process.stdout.readline():
                event = json.loads(line)
                self.events.append(event)
                if event.get("event") == kind and name in (None, event["name"]):
                    return event
        raise EOFError(self.events[-1:])

    def stack(self) -> dict[str, Any]:
        """What stack.json says."""
        return json.loads((self.home / "stack.json").read_text())

    def pid(self, name: str) -> int:
        """Process id of a part."""
        return self.stack()["processes"][name]["pid"]


def descendants(pid: int) -> list[int]:
    """All processes under one."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        with suppress(OSError):
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                waiting += children
    return found


async def gone(pids: list[int], seconds: float = 20) -> list[int]:
    """Which of the processes are still there after a while."""
    left: list[int] = []
    for pid in pids:
        with suppress(ProcessLookupError), open_process(pid) as process:
            if not await asyncio.to_thread(process.ends, seconds):
                left.append(pid)
    return left


async def relight(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Run a command: exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relight.cli"), *arguments, stdout=PIPE, stderr=PIPE, env={**os.environ, **environ}
    )
    async with asyncio.timeout(BOOT_SECONDS):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tmp_path() -> Generator[Path]:
    """Not in pytest's own folder: any pytest that starts closes that one to others, and root's Postgres is another."""
    with tempfile.TemporaryDirectory(prefix="relight-stack-") as folder:
        yield Path(folder)


@pytest.fixture
def up(tmp_path: Path) -> Callable[..., Any]:
    """`async with up("--only", "postgres") as running`; whatever is left of it at the end is ended."""

    @asynccontextmanager
    async def start(*arguments: str, home: Path = tmp_path / "home") -> AsyncGenerator[Up]:
        command = [sys.executable, "-m", "relight.cli", "up", "--json", "--home", str(home), *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            yield Up(process, home)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await process.communicate()

    return start
