"""What a call can be forwarded to: an engine of the run, or an upstream provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from time import monotonic
from typing import Protocol

from relight.llm_proxy.requests import Route

SHUNNED_SECONDS = 1.0
"""What just failed is chosen last."""


class TargetUnavailable(Exception):
    """No target can serve the call now; it is worth asking again."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0, final: bool = False) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.final = final
        """True where waiting does not help."""


class Incoming(Protocol):
    """An answer that comes in."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Its body."""
        ...


class Target:
    """What serves calls, how busy it is and whether it is healthy."""

    def __init__(self, name: str, model: str) -> None:
        self.name = name
        """Under which its generations are recorded."""
        self.model = model
        self.in_flight = 0
        self.failed_at = float("-inf")
        self.unhealthy_since: float | None = None

    def rank(self, now: float) -> tuple[bool, int]:
        """Lower is chosen first."""
        return self.unwell(now), self.in_flight

    def unwell(self, now: float) -> bool:
        """True where it just failed, or does not answer."""
        return self.unhealthy_since is not None or now - self.failed_at < SHUNNED_SECONDS

    @contextmanager
    def lease(self) -> Generator[None]:
        """Count a call."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def failed(self) -> None:
        """It did not answer."""
        self.failed_at = monotonic()

    def post(self, route: Route, content: bytes) -> AbstractAsyncContextManager[Incoming]:
        """Forward a call. Leaving before the answer is read aborts it.

        Raises:
            PassedOn: the request is refused as such.
            TargetUnavailable: anything else that is not an answer.
        """
        raise NotImplementedError

    def clean(self, data: bytes) -> bytes:
        """What it said, less what agents may not see."""
        return data
