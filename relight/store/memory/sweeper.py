"""Sweeps an in-memory store periodically, in a thread, so that no event loop is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Sweeper:
    """Calls `sweep` every so many seconds until it is closed. It ends with the process, too."""

    def __init__(self, sweep: Callable[[], object], period_seconds: float) -> None:
        self._sweep = sweep
        self._period_seconds = period_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relight-sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; returns when it has."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_seconds):
            self._sweep()
