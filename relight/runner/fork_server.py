"""The runner's side of the fork server: starts it, sends fork and kill requests, cleans up when it dies.

`relight.runner.fork_server_process` is the other side.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from relight.errors import AgentLoadError
from relight.processes import linux
from relight.retrying import ExponentialBackoff
from relight.runner.agent_environment import MARKER, agent_environment
from relight.runner.captured_output import OutputPipe
from relight.runner.exit_report import ExitReport
from relight.runner.forked_process import ForkedProcess, OnMessage

_FORK_SECONDS: Final = 60.0
_BURIAL_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 5.0
HEALTHY_SECONDS: Final = 60.0
"""A fork server that lived longer than this is replaced without a pause."""
CLOSING: Final = "the runner is closing"


@dataclass(frozen=True, slots=True)
class ForkServerOptions:
    """How to start a fork server."""

    references: tuple[str, ...]
    passed_environment: tuple[str, ...] = ()
    """Names of variables of this process that agents get too."""
    python: str = sys.executable
    load_timeout_seconds: float = 600.0
    directory: str | None = None
    """The agents' working directory; None: that of this process."""


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """An agent that the fork server has loaded."""

    name: str
    reference: str
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The fork server's report when it is ready."""

    agents: tuple[ServedAgent, ...]
    warnings: tuple[str, ...] = ()
    threads: int = 1
    pid: int = 0


@dataclass(slots=True)
class _Counters:
    forked: int = 0
    ended: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)


class ForkServer:
    """One fork server process, from its start to the end of all its descendants."""

    def __init__(self, options: ForkServerOptions) -> None:
        self._options = options
        self._id = uuid.uuid4().hex
        self._counters = _Counters()
        self._forked: dict[int, ForkedProcess] = {}
        self._outbox: list[tuple[bytes, ForkedProcess | None]] = []
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._reaping = asyncio.Lock()
        self._buried = False
        self.lost: str | None = None
        """Why it ended."""

    async def start(self) -> LoadReport:
        """Import the agents.

        Raises:
            AgentLoadError: an agent can't be imported.
        """
        try:
            return await self._start()
        except BaseException:
            await self.reap("it was not started")
            raise

    async def _start(self) -> LoadReport:
        self._output = OutputPipe()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            self._process = await self._spawn(theirs.fileno())
        self._output.close_child_end()
        self._loop.add_reader(self._control, self._read)
        try:
            async with asyncio.timeout(self._options.load_timeout_seconds):
                loaded = await self._loaded
        except TimeoutError:
            seconds = self._options.load_timeout_seconds
            raise AgentLoadError(f"{self._names}: importing took more than {seconds:.0f} s") from None
        return await self._report(loaded)

    @property
    def _names(self) -> str:
        return f"agent {', '.join(map(repr, self._options.references))}"

    async def _spawn(self, control: int) -> asyncio.subprocess.Process:
        environment = agent_environment(os.environ, self._options.passed_environment, self._id)
        return await asyncio.create_subprocess_exec(
            self._options.python,
            *("-m", "relight.runner.fork_server_process", str(control), *self._options.references),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._output.writer,
            stderr=self._output.writer,
            env=environment,
            cwd=self._options.directory,
            pass_fds=[control],
            start_new_session=True,
        )

    async def _report(self, loaded: dict[str, Any]) -> LoadReport:
        if loaded["op"] == "failed":
            raise AgentLoadError(loaded["message"])
        if loaded["op"] == "lost":
            code = await self._process.wait()
            end = f"was ended by {linux.signal_name(-code)}" if code < 0 else f"exited with {code}"
            self._output.close()
            last = self._output.tail.text().strip().splitlines()[-1:] or ["it printed nothing"]
            raise AgentLoadError(f"{self._names}: importing {end}; {last[0]}")
        agents = tuple(ServedAgent(**agent) for agent in loaded["agents"])
        return LoadReport(agents, tuple(loaded["warnings"]), loaded["threads"], self._process.pid)

    @property
    def output(self) -> str:
        """The end of the output of importing the agents."""
        return self._output.tail.text()

    def fork(self, mode: Literal["attempt", "shared"], on_message: OnMessage) -> ForkedProcess:
        """Request a process; `run` waits for it."""
        process = ForkedProcess(next(self._counters.numbers), on_message, self._kill)
        if self.lost is not None:
            process.has_exited(_lost(self.lost))
            return process
        self._forked[process.number] = process
        self._post({"op": "fork", "id": process.number, "mode": mode}, process)
        return process

    def _kill(self, number: int) -> None:
        if number in self._forked:
            self._post({"op": "kill", "id": number}, None)

    async def until_forked(self, process: ForkedProcess) -> None:
        """Wait for the fork. A fork server that takes a minute, stopped by an agent for instance, is given up."""
        try:
            async with asyncio.timeout(_FORK_SECONDS):
                await asyncio.shield(process.forked)
        except TimeoutError:
            self.give_up(f"the template process forked nothing for {_FORK_SECONDS:.0f} s")

    async def until_exited(self, process: ForkedProcess) -> ExitReport:
        """Wait for its end. If the fork server died first, all its descendants have ended when this returns."""
        report = await asyncio.shield(process.exited)
        if self.lost is not None:
            await self.reap(self.lost)
        return report

    async def end(self, process: ForkedProcess, grace_seconds: float) -> ExitReport:
        """Kill it with everything it started."""
        process.kill()
        try:
            async with asyncio.timeout(grace_seconds):
                return await self.until_exited(process)
        except TimeoutError:
            self.give_up(f"the template process did not answer for {grace_seconds:.0f} s")
        return await self.until_exited(process)

    def _post(self, message: dict[str, Any], process: ForkedProcess | None) -> None:
        self._outbox.append((orjson.dumps(message), process))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                data, process = self._outbox[0]
                socket.send_fds(self._control, [data], process.descriptors if process else [])
                del self._outbox[0]
                if process is not None:
                    process.close_child_ends()
        except BlockingIOError:
            self._loop.add_writer(self._control, self._flush)
        except OSError as error:
            self.give_up(f"the template process is gone: {error.strerror}")
        else:
            self._loop.remove_writer(self._control)

    def _read(self) -> None:
        while True:
            try:
                data = self._control.recv(64 * 1024)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                return self.give_up("the template process died")
            self._take(orjson.loads(data))

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] in ("loaded", "failed"):
            self._loaded.set_result(message)
            return
        process = self._forked.get(message["id"])
        if process is None:
            return
        if message["op"] == "forked":
            process.has_forked(message["pid"])
            return
        del self._forked[process.number]
        process.has_exited(_exit_report(message))

    def give_up(self, why: str) -> None:
        """Give the fork server up: all calls that it had forked end as lost."""
        if self.lost is not None:
            return
        self.lost = why
        for descriptor in (self._loop.remove_reader, self._loop.remove_writer):
            descriptor(self._control)
        self._control.close()
        if not self._loaded.done():
            self._loaded.set_result({"op": "lost"})
        self._sessions = {process.pid for process in self._forked.values() if process.pid is not None}
        for process in self._forked.values():
            process.has_exited(_lost(why))
        self._forked.clear()
        self._outbox.clear()

    async def reap(self, why: str) -> None:
        """Kill it and all its descendants, and wait for their end. May be called several times."""
        async with self._reaping:
            if self._buried or not hasattr(self, "_process"):
                return
            self.give_up(why)
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            await self._kill_descendants()
            self._output.close()
            self._buried = True

    async def _kill_descendants(self) -> None:
        deadline = self._loop.time() + _BURIAL_SECONDS
        marker = f"{MARKER}={self._id}"
        while self._loop.time() < deadline:
            found = [pid for pid in linux.marked(marker, self._sessions) if linux.alive(pid)]
            if not found:
                return
            for pid in found:
                linux.kill(pid)
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Let it kill all that it has forked, and exit."""
        if not hasattr(self, "_process"):
            return
        async with self._reaping:  # or a call that learns of it would kill the template before that has tidied up
            self.give_up(CLOSING)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._process.wait()
        await self.reap(CLOSING)


def _lost(why: str) -> ExitReport:
    return ExitReport(lost=why, excused=why == CLOSING)


def _exit_report(message: dict[str, Any]) -> ExitReport:
    if message["op"] == "refused":
        return ExitReport(lost=f"the attempt's process could not be created: {message['message']}", excused=True)
    return ExitReport(**message["report"])


class ForkServerSupervisor:
    """Keeps one fork server alive; restarts it when it dies, with growing pauses if it dies early."""

    def __init__(self, options: ForkServerOptions) -> None:
        self._options = options
        self._starting = asyncio.Lock()
        self._template: ForkServer | None = None
        self._report: LoadReport | None = None
        self._started_at = 0.0
        self._backoff: ExponentialBackoff | None = None  # the first new one is started at once
        self._closed = False

    @property
    def report(self) -> LoadReport:
        """The report of the first fork server."""
        if self._report is None:
            raise RuntimeError("the runner was not started")
        return self._report

    @property
    def agents(self) -> Sequence[ServedAgent]:
        return self.report.agents

    async def ready(self) -> ForkServer:
        """A fork server that is alive."""
        async with self._starting:
            if self._closed:
                raise RuntimeError("the runner is closed")
            if self._template is None or self._template.lost is not None:
                await self._pause()
                await self._start()
            assert self._template is not None
            return self._template

    async def _pause(self) -> None:
        if self._template is None:
            return
        loop = asyncio.get_running_loop()
        await self._template.reap("a new one is needed")
        if self._backoff is None or loop.time() - self._started_at > HEALTHY_SECONDS:
            self._backoff = ExponentialBackoff(0.1, 10.0)
        else:
            await self._backoff.pause()

    async def _start(self) -> None:
        template = ForkServer(self._options)
        self._started_at = asyncio.get_running_loop().time()
        report = await template.start()
        self._template = template
        self._report = report

    async def close(self) -> None:
        """End the fork server and all that it has forked."""
        self._closed = True
        async with self._starting:
            if self._template is not None:
                await self._template.close()
