"""Targets of calls: an engine of the run, or an upstream provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from time import monotonic
from typing import Protocol

from relight.llm_proxy.requests import Route

AVOIDED_SECONDS = 1.0
"""For this time after a failure a target is chosen last."""


class TargetUnavailable(Exception):
    """No target can serve the call now; it should be retried."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0, final: bool = False) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.final = final
        """True if waiting does not help."""


class Incoming(Protocol):
    """An answer that comes in."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Its body."""
        ...


class Target:
    """Something that serves calls, with its load and health."""

    def __init__(self, name: str, model: str) -> None:
        self.name = name
        """The name under which its generations are recorded."""
        self.model = model
        self.in_flight = 0
        self.failed_at = float("-inf")
        self.unhealthy_since: float | None = None

    def rank(self, now: float) -> tuple[bool, int]:
        """Lower is chosen first."""
        return self.is_unhealthy(now), self.in_flight

    def is_unhealthy(self, now: float) -> bool:
        """True if it failed recently, or does not answer."""
        return self.unhealthy_since is not None or now - self.failed_at < AVOIDED_SECONDS

    @contextmanager
    def lease(self) -> Generator[None]:
        """Count a call."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def failed(self) -> None:
        """Record that it did not answer."""
        self.failed_at = monotonic()

    def post(self, route: Route, content: bytes) -> AbstractAsyncContextManager[Incoming]:
        """Forward a call. Leaving the context before the answer is read aborts it.

        Raises:
            PassedOn: the target refused the request as invalid.
            TargetUnavailable: there was no other answer.
        """
        raise NotImplementedError

    def clean(self, data: bytes) -> bytes:
        """The data without what agents may not see."""
        return data
