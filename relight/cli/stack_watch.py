"""The processes of an embedded stack as its file tells of them: for showing deaths, and for causing them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from relight.errors import StackError
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
    """What the stack of a home folder consists of, by name."""
    known: Mapping[str, Mapping[str, Any]] = read_stack(home).get("processes", {})
    return {name: Process.model_validate({"name": name, **values}) for name, values in known.items()}


def changes(before: Mapping[str, Process], after: Mapping[str, Process]) -> list[str]:
    """What happened between two looks, a line each."""
    lines: list[str] = []
    for name, now in after.items():
        was = before.get(name)
        if was is None or was == now:
            continue
        if now.restarts > was.restarts:
            lines.append(f"{name} (pid {was.pid or '?'}) died and is started again")
        if now.state == "ready" and (was.state, was.pid) != ("ready", now.pid):
            lines.append(f"{name} is back (pid {now.pid})")
    return lines


async def report_changes(home: Path, say: Callable[[str], None]) -> None:
    """Tell of deaths and returns until cancelled."""
    known = read_processes(home)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        now = read_processes(home)
        for line in changes(known, now):
            say(line)
        known = now or known


async def wait_for_return(home: Path, name: str, dead_pid: int, timeout_seconds: float) -> int:
    """The pid of a part's successor, once it is ready.

    Raises:
        StackError: it does not come back in time.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                now = read_processes(home).get(name)
                if now and now.state == "ready" and now.pid and now.pid != dead_pid:
                    return now.pid
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise StackError(f"{name} did not come back within {timeout_seconds:g} s") from None


def kill(home: Path, name: str) -> int:
    """SIGKILL to a part's process; its pid.

    Raises:
        StackError: there is none.
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
