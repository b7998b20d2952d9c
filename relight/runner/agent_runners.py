"""The agents of a runner, each reference with a fork server of its own.

What one agent's module does at import reaches no other agent, and no grader that would judge it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from relight.errors import AgentLoadError
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.collector import OnSpan
from relight.runner.numbering import Flush
from relight.runner.process_messages import LoadReport
from relight.runner.shared_isolation import SharedRunner
from relight.types.rollout import FailureClass


class AgentRunners:
    """Passes each call on to the fork server that has its agent."""

    def __init__(self, references: Sequence[str], **options: Any) -> None:
        """`options` are those of `SharedRunner`."""
        self._runners = {reference: SharedRunner([reference], **options) for reference in dict.fromkeys(references)}
        self._by_agent: dict[str, SharedRunner] = {}

    async def start(self) -> list[LoadReport]:
        """Import the agents; what each fork server reports.

        Raises:
            AgentLoadError: an agent can't be imported, or two have one name.
        """
        reports = await asyncio.gather(*(runner.start() for runner in self._runners.values()))
        taken: dict[str, str] = {}
        for (reference, runner), report in zip(self._runners.items(), reports, strict=True):
            for name in report.agents:
                if name in taken:
                    raise AgentLoadError(
                        f"agent {reference!r}: its name {name!r} is taken by {taken[name]!r}; give one another name="
                    )
                taken[name], self._by_agent[name] = reference, runner
        return reports

    async def call(self, call: AgentCall, *, on_span: OnSpan | None = None, flush: Flush | None = None) -> AgentOutcome:
        return await self._by_agent[call.agent].call(call, on_span=on_span, flush=flush)

    async def kill(self, call_id: str, reason: FailureClass, detail: str = "") -> bool:
        for runner in self._runners.values():
            if await runner.kill(call_id, reason, detail):
                return True
        return False

    def held_seconds(self, call_id: str) -> float:
        return sum(runner.held_seconds(call_id) for runner in self._runners.values())

    async def close(self) -> None:
        await asyncio.gather(*(runner.close() for runner in self._runners.values()))
