"""Measures how long the platform kept an attempt waiting, which does not count towards its deadlines (rule 3)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic


class WaitClock:
    """Seconds in which at least one call of an attempt waited; overlapping waits count once."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.now = now
        self._open: dict[Wait, float] = {}
        self._seconds = 0.0
        self._covered_until = 0.0

    @property
    def waiting(self) -> bool:
        """True while a call waits."""
        return bool(self._open)

    @property
    def seconds(self) -> float:
        """All waits so far, the present one included."""
        if not self._open:
            return self._seconds
        return self._seconds + self._uncovered(min(self._open.values()), self.now())

    def _uncovered(self, since: float, now: float) -> float:
        return max(0.0, now - max(since, self._covered_until))

    def open(self, wait: Wait, since: float) -> None:
        """A wait began at `since`."""
        self._open[wait] = since

    def close(self, wait: Wait) -> float:
        """A wait ends now; returns how long it was."""
        now, since = self.now(), self._open[wait]
        earliest = min(self._open.values())
        self._seconds += self._uncovered(earliest, now)
        self._covered_until = now
        del self._open[wait]
        return now - since

    @contextmanager
    def call(self) -> Generator[Wait]:
        """The waits of one call; one that is still open at the end is closed."""
        wait = Wait(self)
        try:
            yield wait
        finally:
            wait.end()


class Wait:
    """The waits of one call."""

    def __init__(self, clock: WaitClock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._ended = 0.0

    @property
    def active(self) -> bool:
        """True while it waits."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """All of the call's waiting so far."""
        return self._ended + (self._clock.now() - self._since if self._since is not None else 0.0)

    def begin(self, since: float) -> None:
        """The wait began at `since`."""
        if self._since is None:
            self._since = since
            self._clock.open(self, since)

    def end(self) -> None:
        """The wait has ended."""
        if self._since is not None:
            self._since = None
            self._ended += self._clock.close(self)
