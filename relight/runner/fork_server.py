"""The runner's side of the fork server: starts it, sends fork and kill requests, cleans up when it dies.

`relight.runner.fork_server_process` is the other side.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from relight.confinement import sandbox, scratch
from relight.confinement.policy import ConfinementPolicy
from relight.errors import AgentLoadError
from relight.processes import linux
from relight.processes.child import ChildProcess
from relight.processes.restart_backoff import RestartBackoff
from relight.runner import process_messages as messages
from relight.runner.agent_environment import agent_environment
from relight.runner.captured_output import OutputPipe
from relight.runner.forked_process import ForkedProcess, MessageDecoder, OnMessage
from relight.runner.process_messages import EndRequest, ExitReport, ForkRequest, LoadReport, Raised
from relight.types.names import Network

_LOAD_SECONDS: Final = 600.0
_FORK_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 5.0
_REAP_SECONDS: Final = 10.0
_FROM_FORK_SERVER: Final = MessageDecoder[messages.FromForkServer](get_args(messages.FromForkServer))
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group of a message's sender, which the kernel adds (unix(7))."""
CLOSING: Final = "the runner is closing"


@dataclass(frozen=True, slots=True)
class ForkServerOptions:
    """How to start a fork server."""

    references: Sequence[str]
    passed_environment: Sequence[str] = ()
    """Names of variables of this process that agents get too."""
    python: str = sys.executable
    policy: ConfinementPolicy | None = None
    """What agents may reach; None: they are not confined."""
    wrapper: Sequence[str] = ()
    """The start of a command that runs the fork server within something of the user's own."""
    namespaces: bool = False
    """Whether it gets PID, IPC and mount namespaces of its own."""


class ForkServer:
    """One fork server process, from its start to the end of all its descendants."""

    def __init__(self, options: ForkServerOptions) -> None:
        self._options = options
        self.pid = 0
        """That of the fork server's process, once it has loaded its agents."""
        self._root = ""
        self._slots: dict[int, int] = {}
        """By process number, the number of its scratch folder, until that is empty."""
        self._emptying: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count()
        self._forked: dict[int, ForkedProcess] = {}
        self._outbox: list[tuple[bytes, ForkedProcess | None]] = []
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[LoadReport | Raised | None] = self._loop.create_future()
        """None: it ended first."""
        self._reaping = asyncio.Lock()
        self._reaped = False
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
        if self._options.policy is not None:
            self._root = tempfile.mkdtemp(prefix="relight-")
            scratch.make(self._import_folder)
        self._output = OutputPipe()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            self._process = await self._spawn(theirs.fileno())
        self._output.close_child_end()
        self._loop.add_reader(self._control, self._read)
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                loaded = await self._loaded
        except TimeoutError:
            raise AgentLoadError(f"{self._names}: importing took more than {_LOAD_SECONDS:.0f} s") from None
        return await self._report(loaded)

    @property
    def _names(self) -> str:
        return f"agent {', '.join(map(repr, self._options.references))}"

    @property
    def _import_folder(self) -> str:
        return f"{self._root}/{scratch.IMPORT}"

    def _environment(self) -> dict[str, str]:
        own = agent_environment(os.environ, self._options.passed_environment)
        if (policy := self._options.policy) is None:
            return own
        caches = scratch.kept_caches(os.environ, [*policy.readable, *policy.writable])
        return caches | own | scratch.environment(self._import_folder)

    async def _spawn(self, control: int) -> ChildProcess:
        policy = self._options.policy.as_json() if self._options.policy else ""
        program = self._options.python, "-m", "relight.runner.fork_server_process"
        arguments = str(control), self._root, policy, *self._options.references
        return await ChildProcess.start(
            [*self._options.wrapper, *self._namespaces(), *program, *arguments],
            environment=self._environment(),
            log=self._output.writer,
            pass_fds=[control],
            reaped=True,
        )

    def _namespaces(self) -> list[str]:
        if not self._options.namespaces:
            return []
        policy = self._options.policy
        return sandbox.command(self._options.python, sandbox.hidden_paths(policy, self._root) if policy else ())

    async def _report(self, loaded: LoadReport | Raised | None) -> LoadReport:
        if isinstance(loaded, Raised):
            raise AgentLoadError(loaded.message)
        if loaded is None:
            code = await self._process.wait()
            end = f"was ended by {linux.signal_name(code - 128)}" if code > 128 else f"exited with {code}"
            self._output.close()
            last = self._output.tail.text().strip().splitlines()[-1:] or ["it printed nothing"]
            raise AgentLoadError(f"{self._names}: importing {end}; {last[0]}")
        self.pid = loaded.pid
        return replace(loaded, held=replace(loaded.held, namespaces=self._options.namespaces))

    def fork(
        self, mode: Literal["attempt", "shared"], on_message: OnMessage, network: Network = "internet"
    ) -> ForkedProcess:
        """Request a process; `run` waits for it."""
        process = ForkedProcess(next(self._numbers), on_message, self._kill)
        if self.lost is not None:
            process.has_exited(_lost(self.lost))
            return process
        self._forked[process.number] = process
        taken = set(self._slots.values())
        slot = self._slots[process.number] = next(n for n in itertools.count() if n not in taken)
        self._post(process.number, ForkRequest(mode, slot, network), process)
        return process

    def _kill(self, number: int) -> None:
        if number in self._forked:
            self._post(number, EndRequest())

    async def until_forked(self, process: ForkedProcess) -> None:
        """Wait for the fork. A fork server that takes a minute, stopped by an agent for instance, is given up."""
        try:
            async with asyncio.timeout(_FORK_SECONDS):
                await asyncio.shield(process.forked)
        except TimeoutError:
            self.give_up(f"the fork server forked nothing for {_FORK_SECONDS:.0f} s")

    async def until_exited(self, process: ForkedProcess) -> ExitReport:
        """Wait for its end, and until its scratch folder is empty. If the fork server died first, all its descendants
        have ended when this returns.
        """
        report = await asyncio.shield(process.exited)
        if self.lost is not None:
            await self.reap(self.lost)
        elif emptying := self._emptying.get(process.number):
            await asyncio.shield(emptying)
        return report

    async def end(self, process: ForkedProcess, grace_seconds: float) -> ExitReport:
        """Kill it with everything it started."""
        process.kill()
        try:
            async with asyncio.timeout(grace_seconds):
                return await self.until_exited(process)
        except TimeoutError:
            self.give_up(f"the fork server did not answer for {grace_seconds:.0f} s")
        return await self.until_exited(process)

    def _post(self, number: int, message: messages.FromRunner, process: ForkedProcess | None = None) -> None:
        self._outbox.append((messages.encode(number, message), process))
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
            self.give_up(f"the fork server is gone: {error.strerror}")
        else:
            self._loop.remove_writer(self._control)

    def _read(self) -> None:
        while True:
            try:
                data, added, _, _ = self._control.recvmsg(64 * 1024, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return None
            except OSError:
                return self.give_up("the fork server died")
            if not data:
                return self.give_up("the fork server died")
            sender, _, _ = _CREDENTIALS.unpack(added[0][2])
            try:
                self._take(sender, *_FROM_FORK_SERVER.decode(data))
            except ValueError as error:
                return self.give_up(f"the fork server sent an invalid message: {error}")

    def _take(self, sender: int, number: int, message: messages.FromForkServer | None) -> None:
        process = self._forked.get(number)
        match message:
            case Raised() if not self._loaded.done():
                self._loaded.set_result(message)
            case LoadReport() if not self._loaded.done():
                self._loaded.set_result(replace(message, pid=sender))
            case messages.Forked() if process is not None:
                process.has_forked(sender)
            case ExitReport() if process is not None:
                del self._forked[number]
                self._emptying[number] = self._loop.create_task(self._empty(number))
                process.has_exited(message)
            case _:  # of a process that was given up, or none that the fork server sends
                pass

    def folder(self, process: ForkedProcess) -> str | None:
        """The scratch folder of a process; None if it has none."""
        slot = self._slots.get(process.number)
        return f"{self._root}/{slot}" if self._root and slot is not None else None

    async def _empty(self, number: int) -> None:
        if self._root:
            await asyncio.to_thread(scratch.empty, f"{self._root}/{self._slots[number]}")
        del self._slots[number], self._emptying[number]

    def give_up(self, why: str) -> None:
        """Give the fork server up: all calls that it had forked end as lost."""
        if self.lost is not None:
            return
        self.lost = why
        for descriptor in (self._loop.remove_reader, self._loop.remove_writer):
            descriptor(self._control)
        self._control.close()
        if not self._loaded.done():
            self._loaded.set_result(None)
        for process in self._forked.values():
            process.has_exited(_lost(why))
        self._forked.clear()
        self._outbox.clear()

    async def reap(self, why: str, patience_seconds: float = 0.0) -> None:
        """Give it up and, after so long, kill it and all its descendants; wait for their end, and remove its folder.

        May be called several times.
        """
        async with self._reaping:
            if self._reaped or not hasattr(self, "_process"):
                return
            self.give_up(why)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    await self._process.wait()
            await self._process.stop(_REAP_SECONDS, signal.SIGHUP)
            self._output.close()
            if self._root:
                await asyncio.to_thread(scratch.remove, self._root)
            self._reaped = True

    async def close(self) -> None:
        """Close its socket, after which it kills all that it has forked and exits."""
        await self.reap(CLOSING, _CLOSE_SECONDS)


def _lost(why: str) -> ExitReport:
    return ExitReport(lost=why, excused=why == CLOSING)


class ForkServerSupervisor:
    """Replaces a fork server that has died when one is needed; who needs it gets the error if it can't be started."""

    def __init__(self, options: ForkServerOptions) -> None:
        self._options = options
        self._starting = asyncio.Lock()
        self._server: ForkServer | None = None
        self._report: LoadReport | None = None
        self._restarts = RestartBackoff(0.1, 10.0)

    @property
    def report(self) -> LoadReport:
        """The report of the newest fork server."""
        if self._report is None:
            raise RuntimeError("the runner was not started")
        return self._report

    async def ready(self) -> ForkServer:
        """A fork server that is alive."""
        async with self._starting:
            if self._restarts.closing.is_set():
                raise RuntimeError("the runner is closed")
            if self._server is not None and self._server.lost is not None:
                await self._server.reap("a new one is needed")
                self._server = None
                self._restarts.ended()
            if self._server is None:
                self._server = await self._start()
            return self._server

    async def _start(self) -> ForkServer:
        async for _ in self._restarts:
            server = ForkServer(self._options)
            self._report = await server.start()
            self._restarts.ready()
            return server
        raise RuntimeError("the runner is closed")

    async def close(self) -> None:
        """End the fork server and all that it has forked."""
        self._restarts.closing.set()
        async with self._starting:
            if self._server is not None:
                await self._server.close()
