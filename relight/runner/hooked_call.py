"""The agent of a call in its process, with its hooks around it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from relight.litagent.agent_arguments import Invocation
from relight.litagent.loading import LoadedAgent
from relight.runner.agent_process import Reporter, send_spans
from relight.runner.hooks import HookCalls, as_span


class HookedCall:
    """One call. Its hooks get no runner, which is another process; without hooks they cost nothing."""

    def __init__(self, agents: Mapping[str, LoadedAgent], request: Mapping[str, Any], reporter: Reporter) -> None:
        self._agent = agents[request["agent"]].agent
        self._given = Invocation(
            request["task"], llm=request["llm"], resources=request["resources"], rollout=request["rollout"]
        )
        self._reporter = reporter
        self._hooks: HookCalls | None = None
        if self._agent.hooks:
            reporter.announce_hooks()
            self._hooks = HookCalls(self._agent.hooks, agent=self._agent, runner=None, rollout=self._given.rollout)

    def run(self, wait: Callable[[Awaitable[Any]], Any]) -> Any:
        """The agent's result; `wait` runs what is asynchronous."""
        if self._hooks is not None:
            wait(self._begin(self._hooks))
        try:
            value = self._agent.invoke(self._given)
            value = wait(value) if inspect.isawaitable(value) else value
        except BaseException:  # SystemExit and the like are the agent's failures too
            if self._hooks is not None:
                wait(self._end(self._hooks, failed=True))
            raise
        if self._hooks is not None:
            value = send_spans(value)
            wait(self._end(self._hooks))
        return value

    async def run_async(self) -> Any:
        """The agent's result."""
        if self._hooks is not None:
            await self._begin(self._hooks)
        try:
            value = self._agent.invoke(self._given)
            value = await value if inspect.isawaitable(value) else value
        except asyncio.CancelledError:  # by the runner, whose deadline holds for hooks too
            raise
        except BaseException:
            if self._hooks is not None:
                await self._end(self._hooks, failed=True)
            raise
        if self._hooks is not None:
            value = send_spans(value)
            await self._end(self._hooks)
        return value

    async def _begin(self, hooks: HookCalls) -> None:
        await hooks.call("on_rollout_start")
        await hooks.call("on_trace_start", tracer=self._agent.own_tracer)

    async def _end(self, hooks: HookCalls, failed: bool = False) -> None:
        if not failed:
            await hooks.call("on_trace_end", tracer=self._agent.own_tracer)
        spans = [as_span(span, self._given.rollout) for span in self._reporter.kept]
        await hooks.call("on_rollout_end", spans=spans)
