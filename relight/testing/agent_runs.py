"""Attempts at tasks as the runner makes them, in a process of their own, with a store in memory."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Literal, Self
from uuid import uuid4

from relight.errors import AgentLoadError
from relight.litagent import LitAgent
from relight.runner.agent_call import AgentCall
from relight.runner.attempt import AttemptWatch
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.process_isolation import IsolatedRunner
from relight.store.memory.attempts import MemoryAttemptStore
from relight.store.memory.lightning import InMemoryLightningStore
from relight.testing.upstream import ScriptedUpstream
from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, FailureClass, RolloutConfig
from relight.types.tracer import Span
from relight.types.wire import OpenRequest


@dataclass(frozen=True)
class FinishedAttempt:
    """What the store knows of an attempt that has ended."""

    succeeded: bool
    reward: float | None
    rewards: Mapping[str, float]
    """By name, the primary one first."""
    failure_class: FailureClass | None
    message: str
    """Why it failed: the class and message of what the agent raised."""
    spans: list[Span]
    """In the order of their sequence ids."""
    attempt: Attempt


class AgentAttempts:
    """Runs attempts; each agent's module is imported once, by a process that is forked for each attempt."""

    def __init__(self) -> None:
        self._runners: dict[str, IsolatedRunner] = {}
        self._open = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the processes."""
        await self._open.aclose()

    async def run(
        self,
        agent: Any,
        task: Any = None,
        *,
        upstream: ScriptedUpstream,
        resources: NamedResources | None = None,
        mode: Literal["train", "val", "test"] | None = "train",
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> FinishedAttempt:
        """One attempt at a task.

        Args:
            agent: a function or an agent at the top of a module, or its reference (`pkg.module:attr`).
            task: any JSON value.
            upstream: the model that the attempt calls.
            resources: further ones, such as a prompt template.
            mode: as in the store.
            config: deadlines and limits.
            metadata: of the rollout.

        Raises:
            AgentLoadError: the agent can't be imported, or is not at the top of a module.
        """
        reference, name = served(agent)
        runner = await self._runner(reference)
        store = InMemoryLightningStore()
        attempts = MemoryAttemptStore(upstream.origin, tables=store.tables)
        rollout_id = f"ro-{uuid4().hex[:12]}"
        attempts.add_rollout(
            rollout_id, input=task, mode=mode, resources=resources, config=config, metadata=metadata, seed_base="1"
        )
        request = OpenRequest(rollout_id=rollout_id, try_number=1, execution="test", worker_id="test")
        opened = (await attempts.open_attempt(request)).attempt
        assert opened is not None, "this is the only program that opens attempts in this store"
        gateway = GatewayProbe(upstream.origin)
        try:
            outcome = await AttemptWatch(attempts, runner, gateway, opened, "test").run(
                AgentCall.from_opened(opened, name)
            )
        finally:
            await gateway.close()
        assert outcome is not None, "only an attempt with a grader ends without an outcome"
        row = attempts.attempt(opened.attempt_id)
        [attempt] = await store.query_attempts(rollout_id)
        return FinishedAttempt(
            succeeded=outcome.succeeded,
            reward=outcome.reward,
            rewards=row.graded.rewards,
            failure_class=outcome.failure_class,
            message=outcome.message,
            spans=list(await store.query_spans(rollout_id)),
            attempt=attempt,
        )

    async def _runner(self, reference: str) -> IsolatedRunner:
        async with self._starting:
            if reference not in self._runners:
                runner = IsolatedRunner([reference])
                self._runners[reference] = await self._open.enter_async_context(runner)
        return self._runners[reference]


def served(agent: Any) -> tuple[str, str]:
    """The reference by which another process imports an agent, and the agent's name there.

    Raises:
        AgentLoadError: it is not at the top of a module.
    """
    if isinstance(agent, str):
        return agent, agent.rpartition(":")[2]
    module = inspect.getmodule(agent) or inspect.getmodule(type(agent))
    names = [name for name, value in vars(module).items() if value is agent] if module else []
    if module is None or module.__file__ is None or not names:
        raise AgentLoadError(f"agent {agent!r}: no process can import it; assign it to a name at the top of a module")
    if isinstance(agent, LitAgent):
        return module.__file__, agent.name or names[0]
    return f"{module.__file__}:{names[0]}", names[0]
