"""Agents with hooks. Loaded by path into the fork server."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from relight.emitter import emit_message
from relight.litagent import rollout
from relight.types.hooks import Hook


class Telling(Hook):
    """Prints what it is called with."""

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        print("start", agent.name, runner, rollout.input)

    async def on_trace_start(self) -> None:  # type: ignore[override]
        raise RuntimeError("broken")

    def on_trace_end(self, tracer: Any) -> None:  # type: ignore[override]
        print("trace end", tracer)

    async def on_rollout_end(self, *, spans: Any, **given: Any) -> None:
        await asyncio.sleep(0)
        print("end", [span.name for span in spans], sorted(given))


@rollout
def sees_hooks(task: Any) -> float:
    """Emits a message, and returns a reward."""
    emit_message("m")
    return asyncio.run(_half())


async def _half() -> float:
    return 0.5


@rollout
async def sees_hooks_async(task: Any) -> float:
    """The same, asynchronously."""
    emit_message("m")
    return 0.5


@rollout
def failing(task: Any) -> None:
    """Fails."""
    raise KeyError("lost")


@rollout
def exiting(task: Any) -> None:
    """Ends as a program does."""
    sys.exit(3)


@rollout
def dying(task: Any) -> None:
    """Ends its process."""
    os._exit(3)


@rollout
def forking(task: Any) -> float:
    """Returns a reward from two processes."""
    if (pid := os.fork()) != 0:
        os.waitpid(pid, 0)
    return 0.5


class Forking(Hook):
    """Forks, and both processes go on."""

    def on_rollout_start(self, **given: Any) -> None:  # type: ignore[override]
        if (pid := os.fork()) != 0:
            os.waitpid(pid, 0)
            os.environ["FIRST"] = "yes"


@rollout
def forked_before(task: Any) -> float:
    """Returns less in the copy."""
    return 0.5 if "FIRST" in os.environ else 0.1


forked_before.hooks = [Forking()]
for agent in (sees_hooks, sees_hooks_async, failing, exiting, dying, forking):
    agent.hooks = [Telling()]
