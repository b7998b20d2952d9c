"""The process that attempts are forked from: `python -m relight.runner.fork_server_process FD ROOT POLICY REF...`.

It confines itself, with its scratch folders in ROOT, unless that is empty. It imports the agents once, then waits on
its control socket and forks one child for each request, so an attempt costs a fork and no import. It has one thread,
holds no connection and no secret; a task goes to the child directly, over the channel that came with the request.
Each message is a datagram. A `ForkRequest` is answered by the child with `Forked`, and with an `ExitReport` once that
has exited or if it can't be forked.

The runner knows processes by the senders of their messages, since it may be in another PID namespace.

Nothing of an attempt outlives its process. Each child adopts the orphans among its descendants; when it ends they
become children of this process, and a child of this process that is no attempt is killed, again and again until there
is none. When the runner closes the socket (end of file) everything is killed and this process exits.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from relight.confinement.domain import Domain, HeldProtections
from relight.confinement.permission_hints import remedy
from relight.confinement.policy import ConfinementPolicy
from relight.emitter.scope import set_process_scope
from relight.errors import AgentLoadError
from relight.litagent.litagent import FunctionalLitAgent
from relight.litagent.loading import LoadedAgent, load_agents
from relight.processes import linux
from relight.runner import agent_process, attempt_process, frames, shared_process
from relight.runner import process_messages as messages
from relight.runner.hooked_call import HookedCall
from relight.runner.preload import import_lazy_parts
from relight.runner.process_messages import CallRequest, ExitReport, ForkRequest, LoadReport, Raised
from relight.runner.thread_watch import ThreadWatch

MODES: Final[dict[str, Callable[[dict[str, LoadedAgent], socket.socket], NoReturn]]] = {
    "attempt": attempt_process.run,
    "shared": shared_process.run,
}
_SWEEP_SECONDS: Final = 2.0
_WARM_UP_CALLS: Final = 20


class ForkServerProcess:
    """Forks, kills and reaps."""

    def __init__(self, control: socket.socket, agents: dict[str, LoadedAgent], domain: Domain | None) -> None:
        self._control = control
        self._domain = domain
        self._agents = agents
        self._pid = os.getpid()
        self._attempts: dict[int, int] = {}
        """The runner's numbers of processes, by process id."""
        self._left_alone = set(linux.children(self._pid))
        """Children that are not swept: those that agents' modules started, and those that SIGKILL does not end."""
        self._oom_kills = linux.oom_kills()
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> None:
        """Serve until the runner is gone."""
        linux.adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._woken in ready:
                self._reap()
            if self._control.fileno() in ready and not self._answer():
                return self._end_everything()

    def _answer(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 4096, 2)
        except ConnectionError:
            return False
        if not data:
            return False
        number, request = messages.decode(data)
        if isinstance(request, ForkRequest):
            self._fork(number, request, descriptors)
        else:
            for pid in [pid for pid, owner in self._attempts.items() if owner == number]:
                linux.kill_tree(pid)
        return True

    def _send(self, number: int, message: messages.FromForkServer) -> None:
        with suppress(ConnectionError):  # then the next read says so
            self._control.send(messages.encode(number, message))

    def _fork(self, number: int, request: ForkRequest, descriptors: list[int]) -> None:
        try:
            if self._domain is not None:
                self._domain.prepare(request.slot, request.network)
            pid = os.fork()
        except OSError as error:
            lost = f"the attempt's process could not be created: fork: {error.strerror}"
            self._send(number, ExitReport(lost=lost, excused=True))
        else:
            if pid == 0:
                self._become(number, request, *descriptors)
            self._attempts[pid] = number
        for descriptor in descriptors:
            os.close(descriptor)

    def _become(self, number: int, request: ForkRequest, channel: int, output: int) -> NoReturn:
        try:
            os.setsid()
            linux.die_with_parent(self._pid)
            linux.adopt_orphans()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._send(number, messages.Forked())
            self._control.close()
            os.close(self._woken)
            os.close(self._waker)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            if self._domain is not None:
                self._domain.enter_attempt(request.slot, request.network)
            MODES[request.mode](self._agents, socket.socket(fileno=channel))
        finally:
            os._exit(70)  # never return into the fork server's loop, whatever was raised

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        ended = [(number, report) for number, report in iter(self._reap_one, None) if number is not None]
        killed = [report for _, report in ended if report.signal == signal.SIGKILL]
        if killed and self._saw_oom_kill():
            for report in killed:
                report.oom_killed = True
        if ended:
            self._sweep()
            for number, report in ended:
                self._send(number, report)

    def _reap_one(self) -> tuple[int | None, ExitReport] | None:
        """Number (None if it is not an attempt) and end of an ended child; None if no other has ended."""
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        self._left_alone.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        return self._attempts.pop(pid, None), ExitReport(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            peak_rss_bytes=usage.ru_maxrss * 1024,
        )

    def _saw_oom_kill(self) -> bool:
        before, self._oom_kills = self._oom_kills, linux.oom_kills()
        return self._oom_kills > before

    def _sweep(self) -> None:
        """Kill processes that ended attempts left, repeatedly."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        while strays := self._strays():
            if time.monotonic() > deadline:
                self._left_alone.update(strays)
                break
            for pid in strays:
                linux.kill_tree(pid)
            for pid in strays:
                self._await_death(pid, deadline)

    def _strays(self) -> list[int]:
        known = self._attempts.keys() | self._left_alone
        return [pid for pid in linux.children(self._pid) if pid not in known]

    @staticmethod
    def _await_death(pid: int, deadline: float) -> None:
        pause = 0.0002
        with suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(2 * pause, 0.02)

    def _end_everything(self) -> None:
        for pid in self._attempts:
            linux.kill_tree(pid)
        self._attempts.clear()
        self._left_alone.clear()
        self._sweep()


def load(references: list[str], held: HeldProtections) -> tuple[dict[str, LoadedAgent], LoadReport]:
    """Import the agents; returns them and the report for the runner."""
    watch = ThreadWatch()
    with watch:
        agents = load_agents(*references)
        init_tracers(agents)
        import_lazy_parts()
    warnings = watch.check()
    report = LoadReport(agents=[*agents], warnings=warnings, threads=linux.thread_count(), held=held)
    return agents, report


def init_tracers(agents: Mapping[str, LoadedAgent]) -> None:
    """Initialise the agents' tracers, each once.

    Raises:
        AgentLoadError: a tracer failed.
    """
    for tracer in {id(agent.agent.own_tracer): agent.agent.own_tracer for agent in agents.values()}.values():
        try:
            if tracer is not None:
                tracer.init()
                tracer.init_worker(0)
        except Exception as error:  # a tracer may be the user's
            raise AgentLoadError(f"the agent's tracer, {type(tracer).__name__}, failed: {error}") from error


def warm_up() -> None:
    """Run a call with an agent that does nothing, so that Python's caches are filled here once and not in pages that
    every child would have to copy.
    """

    async def nothing(task: object) -> float:
        return 0.0

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agents = {"nothing": LoadedAgent("nothing", "", FunctionalLitAgent(nothing))}
    request = CallRequest(agent="nothing", task={}, resources={}, rollout={}, trace_id="", environment={})
    with ours, theirs:
        reporter = agent_process.Reporter(theirs)
        set_process_scope(reporter.scope(""))
        for _ in range(_WARM_UP_CALLS):
            call = HookedCall(agents, request, reporter, attempt_process.wait_for)
            reporter.report(agent_process.run_without_loop(call.run()))
            frames.receive(ours)
            frames.receive(ours)
    set_process_scope(None)


def main() -> None:
    """Entry point."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    linux.name_process("relight-forker")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    root, policy, *references = sys.argv[2:]
    domain = Domain(ConfinementPolicy.from_json(policy), root, references) if root else None
    held = domain.enter() if domain else HeldProtections()
    try:
        agents, report = load(references, held)
    except AgentLoadError as error:
        hint = remedy(error) if domain else ""
        failed = Raised(type(error).__name__, f"{error.message}{hint and '; '}{hint}", "")
        control.send(messages.encode(0, failed))
        return
    sys.stdout.flush()
    sys.stderr.flush()
    warm_up()
    gc.collect()
    gc.freeze()  # children leave these objects alone, so that their pages stay shared
    control.send(messages.encode(0, report))
    ForkServerProcess(control, agents, domain).serve()


if __name__ == "__main__":
    main()
