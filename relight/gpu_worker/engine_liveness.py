"""Whether a running engine makes progress: one that does not answer, or samples no tokens, has to be replaced.

Checks are counted, not seconds, so that an engine is not replaced because the GPU worker itself was frozen.
"""

from __future__ import annotations

import time

from relight.errors import EngineError
from relight.gpu_worker.engine_client import EngineClient

SILENT_CHECKS = 6
"""Checks in a row without an answer, 5 s each, after which it counts as dead: about a minute."""
STALLED_CHECKS = 60
"""Checks in a row with calls under way and no new token, after which it counts as dead: at least 5 minutes."""


class EngineLiveness:
    """Checks one engine."""

    check_seconds = 5.0

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
        if time.monotonic() - self._checked < self.check_seconds:
            return
        self._silent = 0 if await self._client.health() else self._silent + 1
        self._stalled = self._stalled + 1 if not self._silent and await self._is_stalled() else 0
        self._checked = time.monotonic()
        if self._silent >= SILENT_CHECKS:
            raise EngineError(f"the engine did not answer {self._silent} times in a row")
        if self._stalled >= STALLED_CHECKS:
            raise EngineError(f"the engine has calls under way and has sampled no token in {self._stalled} checks")

    async def _is_stalled(self) -> bool:
        work = await self._client.read_load()
        before, self._tokens = self._tokens, work.tokens if work else 0.0
        return work is not None and work.running > 0 and work.tokens == before
