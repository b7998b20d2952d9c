"""The attempt store: the interface of runners and the gateway to the store.

`PostgresStore`, `StoreClient` (HTTP) and `MemoryStore` implement it with the same rules. Every call may be sent twice;
the second one returns the same answer and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relight.types.wire import (
    AttemptOutcome,
    CallContext,
    CallFailure,
    CommitResult,
    DeliveryMark,
    EngineInfo,
    FinishRequest,
    GenerationRecord,
    GradingRequest,
    OpenAnswer,
    OpenRequest,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
    SpanRecord,
    Transcript,
    WorkerReport,
)


class AttemptStore(Protocol):
    """Attempts, their model calls and their spans."""

    async def open_attempt(self, request: OpenRequest) -> OpenAnswer:
        """Open an attempt, or return why none is opened (rule 1).

        An earlier attempt that is still open is closed as `infrastructure` and counts as a death of the rollout.

        Raises:
            NotFoundError: there is no such rollout.
        """
        ...

    async def finish_attempt(self, request: FinishRequest) -> AttemptOutcome:
        """Close an attempt and update its rollout in one transaction; returns what was recorded.

        Raises:
            NotFoundError: there is no such attempt.
            ConflictError: the fence is not the attempt's, or a newer attempt exists. The spans are stored nevertheless.
        """
        ...

    async def await_grading(self, handed: GradingRequest) -> None:
        """Store the output of an agent that succeeded, and decide which answers were delivered; the attempt stays open
        for its grader.

        Raises:
            NotFoundError: there is no such attempt.
            ConflictError: the fence is not the attempt's, or a newer attempt exists.
        """
        ...

    async def transcript(self, attempt_id: str) -> Transcript:
        """The task, model calls and output of an attempt, for its grader.

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

    async def add_spans(self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[SpanRecord]) -> int:
        """Store spans; returns how many were new. With a stale or missing fence they are stored but change no status.

        Raises:
            NotFoundError: the rollout has no such attempt.
        """
        ...

    async def resolve(self, request: ResolveRequest) -> CallContext:
        """Look up an attempt by its token; returns what the gateway needs to serve its model calls.

        Raises:
            UnauthorizedError: the token is not this attempt's.
            ConflictError: the attempt has ended.
        """
        ...

    async def recall(self, request: RecallRequest) -> RecalledCall:
        """A call whose answer was sent and, by the agent's retry, was not delivered.

        Raises:
            UnauthorizedError: the token is not this attempt's.
            ConflictError: the attempt has ended.
        """
        ...

    async def commit_generations(self, items: Sequence[GenerationRecord]) -> list[CommitResult]:
        """Record model calls in one transaction; one result for each, in order. An invalid item does not affect the
        others.
        """
        ...

    async def record_call_failures(self, items: Sequence[CallFailure]) -> None:
        """Record calls that the platform failed. Those of attempts that have ended are dropped."""
        ...

    async def mark_delivered(self, items: Sequence[DeliveryMark]) -> None:
        """Record whether answers were delivered. Marks of attempts that have ended are dropped."""
        ...

    async def engines(self, run: str) -> list[EngineInfo]:
        """Engines of a run that are ready and hold a version."""
        ...

    async def register_worker(self, worker: WorkerReport) -> None:
        """Record the report of a process."""
        ...
