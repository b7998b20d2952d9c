"""A process for each attempt, forked from a warm template: the default.

    runner = IsolatedRunner(["examples.calculator:agent"])
    async with runner:
        outcome = await runner.call(AgentCall(call_id="at-1", agent="agent", task={...}, llm=llm))

Calls run concurrently, as many as are made. An agent that hangs, forks, crashes or is killed ends its own call and
no other. Nothing that an attempt started is alive when its call has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, Self

from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.collector import Collector, OnSpan
from relight.runner.exit_report import ExitReport
from relight.runner.fork_server import ForkServer, ForkServerOptions, ForkServerSupervisor, LoadReport, ServedAgent
from relight.runner.forked_process import ForkedProcess
from relight.types.rollout import FailureClass

KILL_GRACE_SECONDS: Final = 10.0
"""How long a kill may take before the fork server itself is given up."""


class AgentRunner(Protocol):
    """The interface of both kinds of isolation."""

    async def start(self) -> LoadReport: ...

    @property
    def agents(self) -> Sequence[ServedAgent]: ...

    async def call(self, call: AgentCall, *, on_span: OnSpan | None = None) -> AgentOutcome: ...

    async def kill(self, call_id: str, reason: FailureClass, detail: str = "") -> bool: ...

    def held_seconds(self, call_id: str) -> float: ...

    async def close(self) -> None: ...


class _Running:
    """A call and, once it has one, its process."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.template: ForkServer | None = None
        self.process: ForkedProcess | None = None


class ForkServerRunner:
    """Base class of runners whose processes are forked by one fork server."""

    def __init__(self, keeper: ForkServerSupervisor) -> None:
        self._keeper = keeper

    async def start(self) -> LoadReport:
        """Import the agents.

        Raises:
            AgentLoadError: an agent can't be imported.
        """
        await self._keeper.ready()
        return self._keeper.report

    @property
    def agents(self) -> Sequence[ServedAgent]:
        """The agents that it serves."""
        return self._keeper.agents

    async def close(self) -> None:
        """End everything."""
        await self._keeper.close()

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
        passed_environment: Sequence[str] = (),
        keeper: ForkServerSupervisor | None = None,
    ) -> None:
        options = ForkServerOptions(tuple(references), tuple(passed_environment))
        super().__init__(keeper or ForkServerSupervisor(options))
        self._running: dict[str, _Running] = {}

    async def call(self, call: AgentCall, *, on_span: OnSpan | None = None) -> AgentOutcome:
        """Run one attempt to its end. Cancelling this kills the attempt first.

        `on_span` gets every span as it is emitted; without it they are in the outcome.
        """
        if call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is running already")
        running = self._running[call.call_id] = _Running(Collector(call, on_span))
        try:
            return await self._run(running)
        finally:
            del self._running[call.call_id]

    async def _run(self, running: _Running) -> AgentOutcome:
        template = await self._keeper.ready()
        collector = running.collector
        if collector.killed:
            return collector.outcome(ExitReport())
        process = template.fork("attempt", collector.take)
        running.template, running.process = template, process
        try:
            await template.until_forked(process)
            await process.send(collector.call.payload())
            report = await template.until_exited(process)
        except BaseException:
            await template.end(process, KILL_GRACE_SECONDS)
            raise
        collector.violation = process.violation
        return collector.outcome(report, process.output.tail)

    async def kill(self, call_id: str, reason: FailureClass, detail: str = "") -> bool:
        """Kill a call and all processes that it started; returns when they have ended. False: there is no such call.

        A call whose result has come already keeps it.
        """
        running = self._running.get(call_id)
        if running is None:
            return False
        running.collector.kill(reason, detail)
        if running.template is not None and running.process is not None:
            await running.template.end(running.process, KILL_GRACE_SECONDS)
        return True

    def held_seconds(self, call_id: str) -> float:
        """0: calls share no process here."""
        return 0.0
