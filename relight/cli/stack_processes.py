"""The processes of an embedded stack, read from its stack file: report which die and return, wait for one, kill one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from relight.errors import StackError
from relight.retrying import Every
from relight.settings import read_stack

POLL_SECONDS = 0.3


class Process(BaseModel):
    """A process of the stack."""

    name: str
    state: str
    pid: int | None = None
    restarts: int = 0
    log: str | None = None


def read_processes(home: Path) -> dict[str, Process]:
    """The processes of the stack of a home folder, by name."""
    known: Mapping[str, Mapping[str, Any]] = read_stack(home).get("processes", {})
    return {name: Process.model_validate({"name": name, **values}) for name, values in known.items()}


def changes(before: Mapping[str, Process], after: Mapping[str, Process]) -> list[str]:
    """The differences between two readings, one line each."""
    lines: list[str] = []
    for name, now in after.items():
        was = before.get(name)
        if was is None or was == now:
            continue
        if now.restarts > was.restarts:
            lines.append(f"{name} (pid {was.pid or '?'}) died and is being started again")
        if now.state == "ready" and (was.state, was.pid) != ("ready", now.pid):
            lines.append(f"{name} is running again (pid {now.pid})")
    return lines


async def report_changes(home: Path, say: Callable[[str], None]) -> None:
    """Report which processes die and return, until cancelled."""
    known = read_processes(home)
    async for _ in Every(POLL_SECONDS, at_once=False):
        now = read_processes(home)
        for line in changes(known, now):
            say(line)
        known = now or known


async def wait_for_return(home: Path, name: str, dead_pid: int, timeout_seconds: float) -> int:
    """Wait until a process that died has a successor that is ready; the successor's pid.

    Raises:
        StackError: there is none in time.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                now = read_processes(home).get(name)
                if now and now.state == "ready" and now.pid and now.pid != dead_pid:
                    return now.pid
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise StackError(f"{name} was not running again within {timeout_seconds:g} s") from None


def kill(home: Path, name: str) -> int:
    """Send SIGKILL to a process of the stack; returns its pid.

    Raises:
        StackError: it is not running.
    """
    process = read_processes(home).get(name)
    if process is None or process.pid is None:
        raise StackError(f"{name} is not running")
    os.kill(process.pid, signal.SIGKILL)
    return process.pid


def pids_text(home: Path, more: Collection[tuple[str, int]] = ()) -> str:
    """`runner 123, store 124, ...`."""
    known = [(process.name, process.pid) for process in read_processes(home).values() if process.pid]
    return ", ".join(f"{name} {pid}" for name, pid in [*known, *more])
