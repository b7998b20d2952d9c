"""The agent of a call in its process, with its hooks around it."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from relight.litagent.agent_arguments import Invocation
from relight.litagent.loading import LoadedAgent
from relight.litagent.returns import Returned
from relight.runner.agent_process import Reporter, awaited, send_spans
from relight.runner.hooks import HookCalls, as_span
from relight.runner.process_messages import CallRequest

Wait = Callable[[Awaitable[Any]], Awaitable[Any]]


class HookedCall:
    """One call. Its hooks get no runner, which is another process; without hooks they cost nothing."""

    def __init__(
        self,
        agents: Mapping[str, LoadedAgent],
        request: CallRequest,
        reporter: Reporter,
        wait: Wait | None = None,
    ) -> None:
        """`wait` waits for what is asynchronous; None: it is awaited in the task that runs the call."""
        self._agent = agents[request.agent].agent
        self._given = Invocation(request.task, llm=request.llm, resources=request.resources, rollout=request.rollout)
        self._reporter = reporter
        self._wait = wait or awaited
        self._in_task = wait is None
        self._own_pid = os.getpid()

    async def run(self) -> Returned | BaseException:
        """What the agent returned, or what it raised: SystemExit and the like are its failures too."""
        try:
            ended = await (self._call_with_hooks() if self._agent.hooks else self._call())
        except BaseException as error:  # a hook's
            ended = error
        self._end_copy()
        return ended

    async def _call_with_hooks(self) -> Returned | BaseException:
        self._reporter.announce_hooks()
        hooks = HookCalls(self._agent.hooks, agent=self._agent, runner=None, rollout=self._given.rollout)
        await self._wait(self._begin(hooks))
        ended = await self._call()
        if not (self._in_task and isinstance(ended, asyncio.CancelledError)):  # the runner's deadline holds for hooks
            await self._wait(self._end(hooks, ended))
        return ended

    async def _call(self) -> Returned | BaseException:
        try:
            value = self._agent.invoke(self._given)
            value = await self._wait(value) if inspect.isawaitable(value) else value
            self._end_copy()
            return send_spans(value)
        except BaseException as error:
            self._end_copy()
            return error

    def _end_copy(self) -> None:
        """End a process that the agent or a hook forked, and that returned into this code."""
        if os.getpid() != self._own_pid:
            os._exit(0)

    async def _begin(self, hooks: HookCalls) -> None:
        await hooks.call("on_rollout_start")
        await hooks.call("on_trace_start", tracer=self._agent.own_tracer)

    async def _end(self, hooks: HookCalls, ended: Returned | BaseException) -> None:
        if isinstance(ended, Returned):
            await hooks.call("on_trace_end", tracer=self._agent.own_tracer)
        spans = [as_span(span, self._given.rollout) for span in self._reporter.kept]
        await hooks.call("on_rollout_end", spans=spans)
