"""Supervises the embedded stack's processes: starts, checks, restarts and stops them.

A child runs in a session of its own, writes to its own log file, and is killed when this process ends
(processes/child.py). One that dies is restarted (processes/restart_backoff.py), after the rest of its process group is
killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relight.errors import RelightError, StackError
from relight.processes.child import ChildProcess, describe_exit, reason_in_log, tied_to_parent
from relight.processes.restart_backoff import HEALTHY_SECONDS, RestartBackoff
from relight.retrying import in_background

BAD_INPUT = 2
"""Exit code of Relight's commands for invalid input, after which a restart would not help."""
BOOT_TRIES = 3
FAILED_CHECKS = 2
"""After so many failed checks in a row a ready part is `unresponsive`."""

State = Literal["waiting", "starting", "ready", "unresponsive", "stopping", "restarting", "stopped"]


@dataclass(frozen=True)
class StackEvent:
    """An event of the stack: for people (`text`) and for programs (the rest)."""

    kind: str
    name: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def _nothing() -> None:
    """For parts that need no preparation."""


Preparation = Callable[[], Coroutine[Any, Any, Sequence[str] | None]]
"""Returns the command to run, or None for the part's own."""


@dataclass(frozen=True)
class ManagedProcess:
    """How to run one process of the stack."""

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[int], Awaitable[bool]]
    """Called repeatedly with the process id, until it is true."""
    environment: Mapping[str, str]
    folder: Path
    prepare: Preparation = _nothing
    """Run before each start."""
    cancel_prepare: bool = False
    """Whether a stop cancels `prepare`; otherwise it is completed first."""
    user: str | None = None
    stop_stage: int = 0
    """Lower stages are stopped first."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 5.0
    death_signal: signal.Signals = signal.SIGKILL
    """The signal that the kernel sends it when this process dies."""
    ask_seconds: float = 0.1
    """Pause between two checks whether it is ready."""
    answers: Callable[[int], Awaitable[bool]] | None = None
    """Called periodically with the process id once it was ready; None: it is not checked."""
    check_seconds: float = 2.0
    """Pause between two such checks."""
    is_ending: Callable[[], bool] = lambda: False
    """Whether it is shutting down; called as often as `ready` and `answers`."""
    end_signals: Sequence[tuple[signal.Signals, float]] = ()
    """The signals to send when it shuts down without `stop`, and how long each may take."""
    first_delay_seconds: float = 0.5
    """Before the first restart; doubles with every further one."""
    longest_delay_seconds: float = 30.0
    healthy_seconds: float = HEALTHY_SECONDS
    """After it was ready for this time, the next delay is the first one again."""
    longest_log_bytes: int = 32 * 1024 * 1024
    """A longer log is renamed when it starts; one old log is kept."""


class ProcessSupervisor:
    """Keeps one part running."""

    def __init__(self, part: ManagedProcess, report: Callable[[StackEvent], None]) -> None:
        self.part = part
        self.state: State = "waiting"
        self.restarts = 0
        self.ready = asyncio.Event()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception when the part can't be started."""
        self._report = report
        self._process: ChildProcess | None = None
        self._restarts = RestartBackoff(part.first_delay_seconds, part.longest_delay_seconds, part.healthy_seconds)
        self._stopping = self._restarts.closing
        self._was_ready = False

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.alive else None

    def as_data(self) -> dict[str, Any]:
        """Its entry in the stack's file."""
        return {"pid": self.pid, "state": self.state, "restarts": self.restarts, "log": str(self.part.log)}

    async def run(self) -> None:
        """Start it, and restart it, until `stop`."""
        async for _ in self._restarts:
            reason = await self._run_once()
            if self._stopping.is_set() or self.failure.done():
                break
            self.restarts += 1
            delay = self._restarts.seconds
            self._enter("restarting", f"{self.part.name} {reason}; restart in {delay:g} s", restart_seconds=delay)
        self._enter("stopped", f"{self.part.name} stopped")

    async def stop(self) -> None:
        """Ask it to end; after `stop_seconds` kill its group."""
        self._stopping.set()
        if self._process and self._process.alive:
            await self._process.stop(self.part.stop_seconds, self.part.stop_signal)

    def kill_now(self) -> None:
        """Kill its group."""
        self._stopping.set()
        if self._process and self._process.alive:
            self._process.kill_rest()

    async def _run_once(self) -> str:
        try:
            command = await self._prepared() or self.part.command
            if self._stopping.is_set():
                return "was not started"
            process = self._process = await self._spawn(command)
        except (RelightError, OSError) as error:
            self._has_ended(str(error), final=isinstance(error, RelightError))
            return f"can't be started: {error}"
        pid = process.pid
        if self._stopping.is_set():  # `stop` was called while it was being started
            process.kill_rest()
        self._enter("starting", f"{self.part.name} starts (pid {pid})")
        watch = asyncio.create_task(self._watch(process))
        try:
            status = await process.wait()
        finally:
            watch.cancel()  # not awaited: it may ask a Postgres that is frozen
            self.ready.clear()
            process.kill_rest()
        if not self._stopping.is_set():
            self._has_ended(f"{describe_exit(status)}: {reason_in_log(self.part.log)}", final=status == BAD_INPUT)
        return f"(pid {pid}) died: {describe_exit(status)}"

    async def _prepared(self) -> Sequence[str] | None:
        if not self.part.cancel_prepare:
            return await self.part.prepare()
        prepare, stopped = in_background(self.part.prepare()), in_background(self._stopping.wait())
        async with prepare as (preparing,), stopped as (stopping,):
            await asyncio.wait([preparing, stopping], return_when=asyncio.FIRST_COMPLETED)
            return preparing.result() if preparing.done() else None

    async def _spawn(self, command: Sequence[str]) -> ChildProcess:
        part = self.part
        if part.log.exists() and part.log.stat().st_size > self.part.longest_log_bytes:
            part.log.replace(part.log.with_suffix(".old.log"))
        tied = tied_to_parent(command, part.death_signal, part.user)
        return await ChildProcess.start(tied, environment=part.environment, log=part.log, folder=part.folder)

    async def _watch(self, process: ChildProcess) -> None:
        """Check whether it is ready, then whether it keeps answering; if it shuts down, end it."""
        name, pid, started = self.part.name, process.pid, asyncio.get_running_loop().time()
        if await self._wait_for_answer(pid, self.part.ready, self.part.ask_seconds):
            seconds = asyncio.get_running_loop().time() - started
            self._become_ready(f"{name} is ready after {seconds:.1f} s", seconds=round(seconds, 3))
            while self.part.answers and await self._wait_for_silence(pid, self.part.answers):
                self.ready.clear()
                self._enter("unresponsive", f"{name} (pid {pid}) runs and does not answer")
                if not await self._wait_for_answer(pid, self.part.answers, self.part.ask_seconds):
                    break
                self._become_ready(f"{name} answers again")
        if self.part.is_ending():
            await self._end_sessions(process)

    def _become_ready(self, text: str, **data: Any) -> None:
        self._was_ready = True
        self._restarts.ready()
        self.ready.set()
        self._enter("ready", text, **data)

    async def _wait_for_answer(self, pid: int, ask: Callable[[int], Awaitable[bool]], pause_seconds: float) -> bool:
        """Wait until it answers; False: it is shutting down."""
        while not self.part.is_ending():
            if await _is_answered(ask(pid)):
                return True
            await asyncio.sleep(pause_seconds)
        return False

    async def _wait_for_silence(self, pid: int, ask: Callable[[int], Awaitable[bool]]) -> bool:
        """Wait until it stops answering; False: it is shutting down."""
        failed = 0
        while failed < FAILED_CHECKS:
            await asyncio.sleep(self.part.check_seconds)
            if self.part.is_ending():
                return False
            failed = 0 if await _is_answered(ask(pid)) else failed + 1
        return True

    async def _end_sessions(self, process: ChildProcess) -> None:
        """End it: another process sent it a signal by which it waits for all sessions, and Relight's stay open."""
        if self._stopping.is_set():
            return
        self.ready.clear()
        text = f"{self.part.name} (pid {process.pid}) is shutting down and waits for its sessions; they are closed"
        self._enter("stopping", text)
        for number, seconds in self.part.end_signals:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            await asyncio.sleep(seconds)
        process.kill_rest()

    def _has_ended(self, reason: str, *, final: bool) -> None:
        """Give it up if it never was ready and another try is of no use."""
        self._restarts.ended()
        if self._was_ready or not (final or self._restarts.failures >= BOOT_TRIES):
            return
        self.failure.set_exception(StackError(f"{self.part.name} can't be started: {reason} (log: {self.part.log})"))

    def _enter(self, state: State, text: str, **data: Any) -> None:
        self.state = state
        self._report(StackEvent(state, self.part.name, text, {"pid": self.pid, **data}))


async def _is_answered(question: Awaitable[bool]) -> bool:
    try:
        return await question
    except (RelightError, OSError, TimeoutError):  # not yet, or not now
        return False
