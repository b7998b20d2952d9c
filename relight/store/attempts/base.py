"""The attempt store: the interface of runners and the gateway to the store.

`PostgresStore`, `StoreClient` (HTTP) and `MemoryAttemptStore` implement it with the same rules. Every call may be sent
twice; the second one returns the same answer and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relight.types import wire


class AttemptStore(Protocol):
    """Attempts, their model calls and their spans."""

    async def open_attempt(self, request: wire.OpenRequest) -> wire.OpenAnswer:
        """Open an attempt, or say why none is opened.

        An earlier attempt that is still open is closed as `infrastructure` and counts as a death of the rollout.

        Raises:
            NotFoundError: there is no such rollout.
        """
        ...

    async def finish_attempt(self, request: wire.FinishRequest) -> wire.AttemptOutcome:
        """Close an attempt and move its rollout on, in one transaction; the answer is what was recorded.

        Raises:
            NotFoundError: there is no such attempt.
            ConflictError: the fence is not the attempt's, or a newer attempt exists. The spans are stored nevertheless.
        """
        ...

    async def await_grading(self, request: wire.GradingRequest) -> None:
        """Store the agent's output, and decide unknown deliveries; the attempt stays open for its grader.

        Raises:
            NotFoundError: there is no such attempt.
            ConflictError: the fence is not the attempt's, or a newer attempt exists.
        """
        ...

    async def transcript(self, attempt_id: str) -> wire.Transcript:
        """What a grader gets of an attempt.

        Raises:
            NotFoundError: there is no such attempt.
        """
        ...

    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        """Record that an attempt's process is alive.

        Raises:
            ConflictError: the attempt has ended, or the fence is not its own.
        """
        ...

    async def add_spans(
        self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[wire.SpanRecord]
    ) -> int:
        """Store spans; returns how many were new. With a stale or no fence they are stored, and have no other effect.

        Raises:
            NotFoundError: the rollout has no such attempt.
        """
        ...

    async def resolve(self, request: wire.ResolveRequest) -> wire.CallContext:
        """The attempt of a token, and how its model calls are served.

        Raises:
            UnauthorizedError: the token is not this attempt's.
            ConflictError: the attempt has ended.
        """
        ...

    async def ended_attempts(self, request: wire.EndedAttempts) -> wire.EndedAttempts:
        """Those of these attempts for which `resolve` would raise; unknown ones among them."""
        ...

    async def recall(self, request: wire.RecallRequest) -> wire.RecalledCall:
        """A call whose answer was sent to the agent and did not arrive, as the agent says.

        Raises:
            UnauthorizedError: the token is not this attempt's.
            ConflictError: the attempt has ended.
        """
        ...

    async def commit_generations(self, items: Sequence[wire.GenerationRecord]) -> list[wire.CommitResult]:
        """Record model calls in one transaction; one result for each, in order. An invalid item does not affect the
        others.
        """
        ...

    async def record_call_failures(self, items: Sequence[wire.CallFailure]) -> None:
        """Record calls that the platform failed. Those of attempts that have ended are dropped."""
        ...

    async def mark_delivered(self, items: Sequence[wire.DeliveryMark]) -> None:
        """Record whether answers were delivered. Marks of attempts that have ended are dropped."""
        ...

    async def engines(self, run: str) -> list[wire.EngineInfo]:
        """Engines of a run that are ready and hold a version."""
        ...

    async def register_worker(self, worker: wire.WorkerReport) -> None:
        """Record the report of a process."""
        ...
