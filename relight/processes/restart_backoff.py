"""When a child process that has ended is started again: soon, or later and later while it ends early."""

from __future__ import annotations

import math
from time import monotonic

from relight.retrying import Backoff

HEALTHY_SECONDS = 60.0


class RestartBackoff(Backoff):
    """`async for _ in restarts:` repeats its body, which starts the child and awaits its end, until `closing` is set.

    The body calls `ready` and `ended`. The pauses double up to a limit; after a child that was ready for
    `healthy_seconds` comes the first one.
    """

    def __init__(self, first_seconds: float, longest_seconds: float, healthy_seconds: float = HEALTHY_SECONDS) -> None:
        super().__init__(first_seconds, longest_seconds)
        self.closing = self.wake
        """Set it, and the child is not started again."""
        self.failures = 0
        """How often the child has ended since it was last ready."""
        self._healthy_seconds = healthy_seconds
        self._healthy_at = math.inf

    async def __anext__(self) -> None:
        await super().__anext__()
        if self.closing.is_set():
            raise StopAsyncIteration

    def ready(self) -> None:
        """The child is ready."""
        self.failures = 0
        self._healthy_at = monotonic() + self._healthy_seconds

    def ended(self) -> None:
        """The child has ended, or could not be started."""
        if monotonic() >= self._healthy_at:
            self.reset()
        self._healthy_at = math.inf
        self.failures += 1
