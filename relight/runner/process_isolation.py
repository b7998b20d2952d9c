"""A process for each attempt, forked from the fork server: the default.

    runner = IsolatedRunner(["examples.calculator:agent"])
    async with runner:
        outcome = await runner.call(AgentCall(call_id="at-1", agent="agent", task={...}, llm=llm))

Calls run concurrently, as many as are made. An agent that hangs, forks, crashes or is killed ends its own call and
no other. Nothing that an attempt started is alive when its call has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, Self

from relight.processes import linux
from relight.retrying import Every, in_background
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.attempt_limits import LOOK_SECONDS, RESERVE_BYTES, AttemptLimits, excess
from relight.runner.collector import MAX_SPANS, Collector, OnSpan
from relight.runner.fork_server import ForkServer, ForkServerOptions, ForkServerSupervisor
from relight.runner.forked_process import ForkedProcess
from relight.runner.numbering import Flush, Numbering
from relight.runner.process_messages import ExitReport, LoadReport
from relight.types.rollout import FailureClass

KILL_GRACE_SECONDS: Final = 10.0
"""How long a kill may take before the fork server itself is given up."""


class AgentRunner(Protocol):
    """Runs calls of agents, whatever separates them."""

    async def call(
        self, call: AgentCall, *, on_span: OnSpan | None = None, flush: Flush | None = None
    ) -> AgentOutcome: ...

    async def kill(self, call_id: str, reason: FailureClass, detail: str = "") -> bool: ...

    def held_seconds(self, call_id: str) -> float: ...


class _Running:
    """A call and, once it has one, its process."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.server: ForkServer | None = None
        self.process: ForkedProcess | None = None


class ForkServerRunner:
    """Base class of runners whose processes are forked by one fork server."""

    def __init__(self, supervisor: ForkServerSupervisor) -> None:
        self._supervisor = supervisor

    async def start(self) -> LoadReport:
        """Import the agents.

        Raises:
            AgentLoadError: an agent can't be imported.
        """
        await self._supervisor.ready()
        return self._supervisor.report

    async def close(self) -> None:
        """End everything."""
        await self._supervisor.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class IsolatedRunner(ForkServerRunner):
    """Runs agents in processes of their own."""

    def __init__(
        self,
        references: Sequence[str],
        *,
        limits: AttemptLimits | None = None,
        supervisor: ForkServerSupervisor | None = None,
        max_spans: int = MAX_SPANS,
        kill_grace_seconds: float = KILL_GRACE_SECONDS,
        **options: Any,
    ) -> None:
        """`options` are those of `ForkServerOptions`."""
        super().__init__(supervisor or ForkServerSupervisor(ForkServerOptions(references, **options)))
        self._limits, self._max_spans, self._kill_grace_seconds = limits, max_spans, kill_grace_seconds
        self._running: dict[str, _Running] = {}

    async def call(self, call: AgentCall, *, on_span: OnSpan | None = None, flush: Flush | None = None) -> AgentOutcome:
        """Run one attempt to its end. Cancelling this kills the attempt first.

        `on_span` gets every span as it is emitted; without it they are in the outcome. `flush` stores what it got.
        """
        if call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is running already")
        collector = Collector(call, on_span, self._max_spans, numbering=Numbering(flush))
        running = self._running[call.call_id] = _Running(collector)
        try:
            return await self._run(running)
        finally:
            collector.numbering.close()
            del self._running[call.call_id]

    async def _run(self, running: _Running) -> AgentOutcome:
        server = await self._supervisor.ready()
        collector = running.collector
        if collector.killed:
            return collector.outcome(ExitReport())
        process = server.fork("attempt", collector.take, collector.call.network)
        running.server, running.process = server, process
        collector.numbering.send = process.send
        try:
            await server.until_forked(process)
            await process.send(0, collector.call.request())
            async with in_background(self._watch(collector, server, process)):
                report = await server.until_exited(process)
        except BaseException:
            await server.end(process, self._kill_grace_seconds)
            raise
        collector.violation = process.violation
        return collector.outcome(report, process.output.tail)

    async def _watch(self, collector: Collector, server: ForkServer, process: ForkedProcess) -> None:
        """Kill the attempt when it exceeds a limit."""
        folder = server.folder(process)
        if self._limits is None or folder is None or process.pid is None:
            return
        limits = self._limits
        if (own := collector.call.memory_limit_bytes) is not None:
            most = own + RESERVE_BYTES + linux.anonymous_bytes(server.pid)
            limits = replace(limits, memory_bytes=min(most, limits.memory_bytes))
        async for _ in Every(LOOK_SECONDS, at_once=False):
            found = await asyncio.to_thread(excess, process.pid, folder, limits)
            if found is not None and not process.exited.done():
                collector.kill(found.failure, found.detail)
                process.kill()
                return

    async def kill(self, call_id: str, reason: FailureClass, detail: str = "") -> bool:
        """Kill a call and all processes that it started; returns when they have ended. False: there is no such call.

        A call whose result has come already keeps it.
        """
        running = self._running.get(call_id)
        if running is None:
            return False
        running.collector.kill(reason, detail)
        if running.server is not None and running.process is not None:
            await running.server.end(running.process, self._kill_grace_seconds)
        return True

    def held_seconds(self, call_id: str) -> float:
        """0: calls share no process here."""
        return 0.0
