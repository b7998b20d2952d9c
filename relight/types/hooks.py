"""What a user's code may do at the start and the end of attempts and of their traces."""

from __future__ import annotations

from typing import Any

from relight.types.core import ParallelWorkerBase


class Hook(ParallelWorkerBase):
    """Base of hooks: override what is needed, sync or async. Source: Agent Lightning 0.3's `Hook`.

    A method is called with those of these arguments that its parameters name: `agent`, `runner`, `rollout` and, of a
    trace, `tracer`; `on_rollout_end` also gets `spans`, those that the tracer has recorded and the agent has returned.
    What it raises is recorded and has no other effect. The time that it takes is the attempt's; when that is over, no
    hook runs any more.
    """

    async def on_rollout_start(self, *args: Any, **kwargs: Any) -> None:
        """An attempt begins."""

    async def on_trace_start(self, *args: Any, **kwargs: Any) -> None:
        """The tracer records, and the agent is about to be called."""

    async def on_trace_end(self, *args: Any, **kwargs: Any) -> None:
        """The agent has returned, and the tracer still records."""

    async def on_rollout_end(self, *args: Any, **kwargs: Any) -> None:
        """The agent has returned or failed; the attempt's end is about to be recorded."""
