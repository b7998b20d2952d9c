"""Whether an engine that is there gets on with its work: one that answers nothing, or makes no tokens, is dead to us.

Checks are counted, not seconds: a GPU worker that was itself frozen blames nobody.
"""

from __future__ import annotations

import time

from relight.errors import EngineError
from relight.gpu_worker.engine_client import EngineClient

CHECK_SECONDS = 5.0
SILENT_CHECKS = 6
"""So often it may fail to answer, 5 s each: about a minute in all."""
STALLED_CHECKS = 60
"""So often it may have calls under way and no new token: 5 minutes at least."""


class Pulse:
    """Of one engine."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._checked = time.monotonic()
        self._silent = 0
        self._stalled = 0
        self._tokens = 0.0

    async def check(self) -> None:
        """Ask the engine, every few seconds.

        Raises:
            EngineError: it has to be started again.
        """
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        self._silent = 0 if await self._client.health() else self._silent + 1
        self._stalled = self._stalled + 1 if not self._silent and await self._stands_still() else 0
        self._checked = time.monotonic()
        if self._silent >= SILENT_CHECKS:
            raise EngineError(f"the engine did not answer {self._silent} times in a row")
        if self._stalled >= STALLED_CHECKS:
            raise EngineError(f"the engine has calls under way and made no token in {self._stalled} checks")

    async def _stands_still(self) -> bool:
        work = await self._client.work()
        before, self._tokens = self._tokens, work.tokens if work else 0.0
        return work is not None and work.running > 0 and work.tokens == before
