"""A child process in a session of its own, which is killed with all that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Self

from relight.processes import parent_death_tie, process_group_reaper
from relight.processes.linux import kill_group, signal_name

_TAIL_BYTES = 64 * 1024


def tied_to_parent(command: Sequence[str], death_signal: signal.Signals, user: str | None) -> list[str]:
    """The command, wrapped so that the kernel sends it `death_signal` when this process dies."""
    return [*launcher(parent_death_tie), str(int(death_signal)), user or "-", *command]


def launcher(program: ModuleType) -> list[str]:
    """The start of a command that runs a program of this package below this process; its arguments follow."""
    return [sys.executable, "-I", "-S", str(program.__file__), str(os.getpid())]


def describe_exit(status: int) -> str:
    """An exit status in words."""
    return f"exit status {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def log_tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])


def reason_in_log(log: Path) -> str:
    """Why a process ended, by its log: the last `error:` line, else the last line."""
    lines = [line.strip() for line in log_tail(log, 100).splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1]


def _open(log: Path) -> int:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class ChildProcess:
    """One child and what it started: its process group, or with a reaper all of its session."""

    def __init__(self, process: asyncio.subprocess.Process, kill: Callable[[int], None]) -> None:
        self._process = process
        self._kill = kill

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path | int,
        folder: Path | str | None = None,
        pass_fds: Sequence[int] = (),
        reaped: bool = False,
    ) -> Self:
        """Start the command. Its log is a file that no other user can read, or a descriptor that the caller closes;
        with `reaped`, nothing of it outlives this process.
        """
        below = launcher(process_group_reaper) if reaped else []
        output = log if isinstance(log, int) else _open(log)
        try:
            process = await asyncio.create_subprocess_exec(
                *below,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                cwd=folder,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        finally:
            if output != log:
                os.close(output)
        return cls(process, process_group_reaper.kill_session if reaped else kill_group)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def pids(self) -> list[int]:
        """The living processes of the child's session."""
        return process_group_reaper.members_of_session(self.pid)

    async def wait(self) -> int:
        """Wait until the child itself has ended; processes that it started may run until `kill`."""
        return await self._process.wait()

    async def stop(self, grace_seconds: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the child a signal, then after `grace_seconds` at most SIGKILL to all of it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL the child and all that it started."""
        self.kill_rest()
        await self._process.wait()

    def kill_rest(self) -> None:
        """SIGKILL what is left of it."""
        self._kill(self.pid)
