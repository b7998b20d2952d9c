"""Runs many attempts in one process, for agents that mostly wait, if a process for each would cost too much.

Time in which one attempt blocks the process does not count for the others. An attempt that hangs is cancelled first. If
it ignores that, the process is killed: the other attempts in it end as `infrastructure` and are run again, and the next
call gets a new process. A call may ask for a process of its own. Agents get their model's address only from the `llm`
parameter, since all calls share the environment.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any, Final

from relight.runner import process_messages as messages
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.attempt_limits import AttemptLimits
from relight.runner.collector import Collector, OnSpan
from relight.runner.fork_server import ForkServer, ForkServerOptions, ForkServerSupervisor
from relight.runner.forked_process import ForkedProcess
from relight.runner.numbering import Flush, Numbering
from relight.runner.process_isolation import KILL_GRACE_SECONDS, ForkServerRunner, IsolatedRunner
from relight.runner.process_messages import ExitReport
from relight.types.rollout import FailureClass

CANCEL_GRACE_SECONDS: Final = 5.0
"""How long a cancelled call may take to end before its process is killed."""


class _Running:
    """A call in a shared process."""

    def __init__(self, number: int, collector: Collector) -> None:
        self.number = number
        self.collector = collector
        self.process: _Shared | None = None
        self.held_seconds = 0.0
        """Time in which another call blocked their process."""
        self.done = asyncio.Event()


class _Shared:
    """One shared process and the calls in it."""

    def __init__(self, server: ForkServer) -> None:
        self.calls: dict[int, _Running] = {}
        self.ended: ExitReport | None = None
        self.why = ""
        """Why it was killed, if it was."""
        self._alone = False
        self._blocked_until = time.monotonic()
        """When time was last reported as blocked."""
        self._server = server
        self._process: ForkedProcess = server.fork("shared", self._take)
        self._process.exited.add_done_callback(self._has_ended)

    async def send(self, call: int, message: messages.FromRunner) -> None:
        await self._server.until_forked(self._process)
        await self._process.send(call, message)

    def _take(self, call: int, message: messages.FromAgent, size_bytes: int) -> None:
        running = self.calls.get(call)
        if running is None:
            return
        if isinstance(message, messages.Blocked) and message.seconds > 0:
            self._hold_up(running, message.seconds, time.monotonic())
            return
        running.collector.take(call, message, size_bytes)
        if running.collector.ended is not None:
            running.done.set()

    def _hold_up(self, blocking: _Running, seconds: float, now: float) -> None:
        """Count it for the others: no more than has passed, since an agent can write such a message itself."""
        passed, self._blocked_until = now - self._blocked_until, now
        for running in self.calls.values():
            if running is not blocking:
                running.held_seconds += min(seconds, passed)

    def _has_ended(self, exited: asyncio.Future[ExitReport]) -> None:
        self.ended = exited.result()
        unfinished = [running for running in self.calls.values() if not running.done.is_set()]
        self._alone = len(unfinished) == 1 and not self.why
        for running in unfinished:
            running.done.set()

    def report_for(self, running: _Running) -> ExitReport:
        """The report for a call whose process died."""
        if self.ended is None or running.collector.ended is not None:
            return ExitReport()
        running.collector.violation = self._process.violation
        running.collector.tail.write(self._process.output.tail.text().encode())
        if self._alone or self.ended.lost is not None:
            return self.ended
        how = f"exit code {self.ended.code}, signal {self.ended.signal}"
        lost = self.why or f"the process that it shared with other attempts ended ({how})"
        return ExitReport(lost=lost, excused=bool(self.why))

    async def end(self, why: str) -> None:
        """Kill it, with all calls in it."""
        self.why = self.why or why
        await self._server.end(self._process, KILL_GRACE_SECONDS)

    async def settle(self) -> None:
        """Wait until all its processes have ended."""
        if self.ended is not None:
            await self._server.until_exited(self._process)


class SharedRunner(ForkServerRunner):
    """Runs agents concurrently in one process."""

    def __init__(
        self,
        references: Sequence[str],
        *,
        limits: AttemptLimits | None = None,
        cancel_grace_seconds: float = CANCEL_GRACE_SECONDS,
        **options: Any,
    ) -> None:
        """`options` are those of `ForkServerOptions`."""
        super().__init__(ForkServerSupervisor(ForkServerOptions(references, **options)))
        self._isolated = IsolatedRunner(references, limits=limits, supervisor=self._supervisor)
        self._grace_seconds = cancel_grace_seconds
        self._numbers = itertools.count()
        self._running: dict[str, _Running] = {}
        self._shared: _Shared | None = None
        self._forking = asyncio.Lock()

    async def call(self, call: AgentCall, *, on_span: OnSpan | None = None, flush: Flush | None = None) -> AgentOutcome:
        """Run one attempt to its end. Cancelling this ends the attempt first."""
        if call.alone:
            return await self._isolated.call(call, on_span=on_span, flush=flush)
        if call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is running already")
        number = next(self._numbers)
        running = _Running(number, Collector(call, on_span, numbering=Numbering(flush, number)))
        self._running[call.call_id] = running
        try:
            return await self._run(running)
        finally:
            running.collector.numbering.close()
            del self._running[call.call_id]

    async def _run(self, running: _Running) -> AgentOutcome:
        shared = running.process = await self._process()
        if running.collector.killed:
            return running.collector.outcome(ExitReport())
        shared.calls[running.number] = running
        running.collector.numbering.send = shared.send
        try:
            await shared.send(running.number, running.collector.call.request())
            await running.done.wait()
            report = shared.report_for(running)
            await shared.settle()
        except BaseException:
            await self._end(running, "its call was cancelled")
            raise
        finally:
            shared.calls.pop(running.number, None)
        return running.collector.outcome(report)

    async def _process(self) -> _Shared:
        async with self._forking:
            if self._shared is None or self._shared.ended is not None or self._shared.why:
                self._shared = _Shared(await self._supervisor.ready())
            return self._shared

    async def kill(self, call_id: str, reason: FailureClass, detail: str = "") -> bool:
        """End a call: cancel it, or else kill its process. False: there is no such call."""
        running = self._running.get(call_id)
        if running is None:
            return await self._isolated.kill(call_id, reason, detail)
        running.collector.kill(reason, detail)
        await self._end(running, reason.value)
        return True

    def held_seconds(self, call_id: str) -> float:
        """How long other calls have blocked the process of this one, so far."""
        running = self._running.get(call_id)
        return running.held_seconds if running else 0.0

    async def _end(self, running: _Running, why: str) -> None:
        shared = running.process
        if shared is None or running.done.is_set():
            return
        await shared.send(running.number, messages.EndRequest())
        try:
            async with asyncio.timeout(self._grace_seconds):
                await running.done.wait()
        except TimeoutError:
            call = running.collector.call
            await shared.end(
                f"the process that it shared with attempt {call.call_id} was killed, "
                f"because that one ({why}) ignored its cancellation"
            )
