"""Child processes of the embedded stack: started on a leash, kept alive, stopped in order.

A child runs in a process group of its own, writes to its own log file, and ends when we end (leash.py). One that dies
is started again, with a back-off that a healthy minute resets. What is left of a dead child's group is killed first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relight.errors import RelightError, StackError

LEASH = Path(__file__).with_name("leash.py")
BAD_INPUT = 2
"""Exit code with which our commands refuse what they were given; to try again would change nothing."""
BOOT_TRIES = 3
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
LONGEST_LOG_BYTES = 32 * 1024 * 1024
"""A longer log is put aside (one is kept) when its part starts."""

State = Literal["waiting", "starting", "ready", "restarting", "stopped"]


@dataclass(frozen=True)
class Event:
    """Something that happened to the stack: for people (`text`) and for programs (the rest)."""

    kind: str
    name: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def _nothing() -> None:
    """For parts that need no preparation."""


@dataclass(frozen=True)
class Part:
    """How one process of the stack is run."""

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[int], Awaitable[bool]]
    """Asked again and again with the process id, until it is true."""
    environment: Mapping[str, str]
    folder: Path
    prepare: Callable[[], Awaitable[None]] = _nothing
    """Run before each start."""
    user: str | None = None
    stop_stage: int = 0
    """Lower stages are stopped first."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 5.0
    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends it when we die."""
    ask_seconds: float = 0.1
    """Pause between two questions whether it is ready."""


def leashed(command: Sequence[str], death_signal: signal.Signals, user: str | None) -> list[str]:
    """The command, tied to this process."""
    leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(death_signal)), user or "-"]
    return [*leash, *command]


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def next_delay(previous: float | None, lived_seconds: float) -> float:
    """How long to wait before the next start."""
    if previous is None or lived_seconds >= HEALTHY_SECONDS:
        return FIRST_DELAY_SECONDS
    return min(previous * 2, LONGEST_DELAY_SECONDS)


class Keeper:
    """Keeps one part running."""

    def __init__(self, part: Part, report: Callable[[Event], None]) -> None:
        self.part = part
        self.state: State = "waiting"
        self.restarts = 0
        self.ready = asyncio.Event()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the part can't be booted."""
        self._report = report
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._was_ready = False
        self._deaths_at_boot = 0

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def as_data(self) -> dict[str, Any]:
        """What the stack's file says about it."""
        return {"pid": self.pid, "state": self.state, "restarts": self.restarts, "log": str(self.part.log)}

    async def run(self) -> None:
        """Start it, and start it again, until `stop`."""
        delay: float | None = None
        while not self._stopping.is_set():
            started = asyncio.get_running_loop().time()
            reason = await self._run_once()
            if self._stopping.is_set() or self.failure.done():
                break
            delay = next_delay(delay, asyncio.get_running_loop().time() - started)
            self.restarts += 1
            self._enter("restarting", f"{self.part.name} {reason}; restart in {delay:g} s", restart_seconds=delay)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
        self._enter("stopped", f"{self.part.name} stopped")

    async def stop(self) -> None:
        """Ask it to end; after `stop_seconds` kill its group."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(self.part.stop_signal)
        try:
            await asyncio.wait_for(process.wait(), self.part.stop_seconds)
        except TimeoutError:
            kill_group(process.pid)
            await process.wait()

    def kill_now(self) -> None:
        """Kill its group."""
        self._stopping.set()
        if self.pid:
            kill_group(self.pid)

    async def _run_once(self) -> str:
        try:
            await self.part.prepare()
            if self._stopping.is_set():
                return "was not started"
            process = self._process = await self._spawn()
        except (RelightError, OSError) as error:
            self._give_up_at_boot(str(error), final=isinstance(error, RelightError))
            return f"can't be started: {error}"
        pid = process.pid
        if self._stopping.is_set():  # told to stop while it was being started
            kill_group(pid)
        self._enter("starting", f"{self.part.name} starts (pid {pid})")
        watch = asyncio.create_task(self._watch(pid))
        try:
            status = await process.wait()
        finally:
            watch.cancel()
            self.ready.clear()
            kill_group(pid)
        if not self._stopping.is_set():
            self._give_up_at_boot(f"{describe_exit(status)}: {last_words(self.part.log)}", final=status == BAD_INPUT)
        return f"(pid {pid}) died: {describe_exit(status)}"

    async def _spawn(self) -> Process:
        part = self.part
        part.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if part.log.exists() and part.log.stat().st_size > LONGEST_LOG_BYTES:
            part.log.replace(part.log.with_suffix(".old.log"))
        log = os.open(part.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                *leashed(part.command, part.death_signal, part.user),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(part.environment),
                cwd=part.folder,
                start_new_session=True,
            )
        finally:
            os.close(log)

    async def _watch(self, pid: int) -> None:
        started = asyncio.get_running_loop().time()
        while not await self._is_ready(pid):  # noqa: ASYNC110 - another process' state has no event to wait for
            await asyncio.sleep(self.part.ask_seconds)
        seconds = asyncio.get_running_loop().time() - started
        self._was_ready = True
        self.ready.set()
        self._enter("ready", f"{self.part.name} is ready after {seconds:.1f} s", seconds=round(seconds, 3))

    async def _is_ready(self, pid: int) -> bool:
        try:
            return await self.part.ready(pid)
        except (RelightError, OSError, TimeoutError):  # not yet
            return False

    def _give_up_at_boot(self, reason: str, *, final: bool) -> None:
        self._deaths_at_boot += 1
        if self._was_ready or self.failure.done() or not (final or self._deaths_at_boot >= BOOT_TRIES):
            return
        self.failure.set_exception(StackError(f"{self.part.name} can't be started: {reason} (log: {self.part.log})"))

    def _enter(self, state: State, text: str, **data: Any) -> None:
        self.state = state
        self._report(Event(state, self.part.name, text, {"pid": self.pid, **data}))


def kill_group(leader: int) -> None:
    """SIGKILL to a process group, if anything is left of it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def last_words(log: Path, size_bytes: int = 8192) -> str:
    """Why a process ended, by its log: the last `error:` line, else the last line."""
    try:
        text = log.read_bytes()[-size_bytes:].decode(errors="replace")
    except OSError:
        return "no log"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1]
