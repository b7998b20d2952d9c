"""Computes when an attempt is overdue, from times that the caller gives.

There are two deadlines: `timeout_seconds` since the start, and `unresponsive_seconds` since the last sign of life (a
span or a generation). Time that the platform spent (waiting for an engine or the store) counts towards neither: the
caller gives it as one growing total, and reads it again before it enforces a deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relight.types.rollout import FailureClass, RolloutConfig


@dataclass(frozen=True, slots=True)
class Deadlines:
    """One attempt's deadlines; every event makes a new one. Times are seconds of any one clock."""

    started: float
    timeout_seconds: float | None = None
    unresponsive_seconds: float | None = None
    last_progress: float | None = None
    """None: no sign of life so far."""
    excluded_seconds: float = 0.0
    """Platform time since the start."""
    excluded_before_progress: float = 0.0
    """The part of it before the last sign of life."""

    @classmethod
    def of(cls, config: RolloutConfig, started: float) -> Deadlines:
        """Those of a rollout's configuration."""
        return cls(started, config.timeout_seconds, config.unresponsive_seconds)

    def progressed(self, at: float) -> Deadlines:
        """A span or a generation was seen."""
        if at < self._since:
            return self
        return replace(self, last_progress=at, excluded_before_progress=self.excluded_seconds)

    def excluding(self, total_seconds: float) -> Deadlines:
        """Set the platform time since the start, including waits under way. It never decreases."""
        return replace(self, excluded_seconds=max(self.excluded_seconds, total_seconds))

    @property
    def _since(self) -> float:
        return self.started if self.last_progress is None else self.last_progress

    @property
    def timeout_at(self) -> float | None:
        """The time of the timeout, if the platform spends no more time."""
        return None if self.timeout_seconds is None else self.started + self.timeout_seconds + self.excluded_seconds

    @property
    def unresponsive_at(self) -> float | None:
        """The time at which it is unresponsive, if the platform spends no more time."""
        if self.unresponsive_seconds is None:
            return None
        return self._since + self.unresponsive_seconds + self.excluded_seconds - self.excluded_before_progress

    @property
    def next_at(self) -> float | None:
        """When to check next; None: never."""
        return min((at for at in (self.timeout_at, self.unresponsive_at) if at is not None), default=None)

    def due(self, now: float) -> FailureClass | None:
        """The deadline that has passed; of both, the earlier one."""
        at = self.next_at
        if at is None or now < at:
            return None
        return FailureClass.TIMEOUT if at == self.timeout_at else FailureClass.UNRESPONSIVE

    def describe(self, due: FailureClass) -> str:
        """The message for an attempt that missed this deadline."""
        excluded = f", {self.excluded_seconds:.1f} s of platform time not counted" if self.excluded_seconds else ""
        if due is FailureClass.TIMEOUT:
            return f"ran longer than timeout_seconds={self.timeout_seconds:g}{excluded}"
        return f"no span and no generation for unresponsive_seconds={self.unresponsive_seconds:g}{excluded}"


class GrowingTotal:
    """A total out of readings of a counter that starts again at 0 when its process does."""

    def __init__(self) -> None:
        self._before = 0.0
        self._last = 0.0

    def read(self, value: float) -> float:
        """Take a reading; returns the total so far."""
        if value < self._last:
            self._before += self._last
        self._last = value
        return self._before + value
