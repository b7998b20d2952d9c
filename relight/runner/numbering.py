"""Answers an agent's process that waits until its spans have their place in the order of the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from relight.errors import RelightError
from relight.runner.process_messages import Number

Flush = Callable[[], Awaitable[None]]
"""Sends to the store what an attempt has emitted so far."""
Send = Callable[[int, Number], Awaitable[None]]


class Numbering:
    """The questions of one call. A later one answers all before it."""

    def __init__(self, flush: Flush | None, call: int = 0) -> None:
        self.send: Send | None = None
        """Reaches the agent's process."""
        self._flush = flush
        self._call = call
        self._asked = 0
        self._task: asyncio.Task[None] | None = None

    def ask(self, number: int) -> bool:
        """Answer with this number once the spans so far are stored. False: it is no number of a question."""
        if not 0 < number < 2**53:
            return False
        self._asked = max(self._asked, number)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._answer())
        return True

    async def _answer(self) -> None:
        answered = 0
        while answered < self._asked and self.send is not None:
            answered = self._asked
            with suppress(RelightError):  # the store does not answer: the agent goes on after a while
                if self._flush is not None:  # the spans are stored
                    await self._flush()
                await self.send(self._call, Number(answered))

    def close(self) -> None:
        """The call has ended."""
        if self._task is not None:
            self._task.cancel()
