"""The store of rollouts as Agent Lightning 0.3's users know it: queue, attempts, spans, resources, workers.

Three things implement it with the same rules: `PostgresLightningStore`, `LightningStoreClient` (HTTP, `/v1/agl`) and
`InMemoryLightningStore`. It is the same rows as `AttemptStore`'s: a rollout that somebody enqueues and one that a run
plans differ in who dispatches them.

Where not said otherwise an unknown rollout or attempt raises NotFoundError, which is a ValueError too, and a change
that the state forbids raises ConflictError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, AttemptedRollout, AttemptStatus, Mode, Rollout, RolloutConfig, RolloutStatus
from relight.types.store import (
    UNSET,
    Dispatch,
    EnqueueRolloutRequest,
    FilterLogic,
    PaginatedResult,
    ResourcesUpdate,
    SortOrder,
    Span,
    Unset,
    Worker,
    WorkerStatus,
)


class LightningStore(Protocol):
    """Every method of 0.3's store, and what its users asked for."""

    @property
    def capabilities(self) -> dict[str, bool]:
        """thread_safe, async_safe, zero_copy, otlp_traces; a missing one is false."""
        ...

    def otlp_traces_endpoint(self) -> str:
        """URL that spans are exported to.

        Raises:
            NotImplementedError: the capability `otlp_traces` is not there.
        """
        ...

    async def statistics(self) -> dict[str, Any]:
        """name, total_rollouts, total_attempts, total_spans, total_resources, total_workers, uptime (seconds)."""
        ...

    async def start_rollout(
        self,
        input: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        """A rollout with attempt 1 at once, never queued."""
        ...

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        dispatch: Dispatch | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        """A rollout at the end of the queue, with the newest resources unless others are named."""
        ...

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Several, in order, in one transaction."""
        ...

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout in the queue: its next attempt, lease and fence in one transaction.

        With the same key again it answers with the same rollout, so that a lost answer loses no rollout.
        """
        ...

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit`; none where it is 0 or less."""
        ...

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """One more attempt by hand, whatever `max_attempts` says."""
        ...

    async def add_span(self, span: Span) -> Span | None:
        """Keep a span, which is a sign of life of its attempt; None where it is there already."""
        ...

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Keep spans in one transaction; those that were new."""
        ...

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Keep an OpenTelemetry `ReadableSpan`."""
        ...

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Next number of the rollout, which all its attempts share; starts at 1, without gaps."""
        ...

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """One for each pair, in order; a pair may come several times."""
        ...

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        mode: Mode | None = None,
        run: str | None = None,
        step: int | None = None,
        failure_class: str | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts, each with its newest attempt where it has one. The filters from `mode` on are always ANDed."""
        ...

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Attempts of a rollout; none for one that is unknown."""
        ...

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """None where it is unknown."""
        ...

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """None where there is none."""
        ...

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """All snapshots."""
        ...

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """None where it is unknown."""
        ...

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or updated last."""
        ...

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """A new snapshot, version 1."""
        ...

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create it, or replace what it holds and raise its version."""
        ...

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Spans of a rollout, of one attempt, or of the newest (`latest`); that scope is always ANDed."""
        ...

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Those that have ended, at once when all have, else after `timeout` seconds; None waits without end."""
        ...

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any | Unset = UNSET,
        mode: Mode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Change fields. A status that ends it wakes those who wait; `requeuing` queues it."""
        ...

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        """Change an attempt (or `latest`). Only the newest one's status moves the rollout on."""
        ...

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """All workers."""
        ...

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None where it is unknown."""
        ...

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> Worker:
        """A heartbeat. It can't set the status.

        Raises:
            TypeError: no statistics.
        """
        ...

    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """End a rollout: its open attempt is fenced off and its token is good for nothing any more."""
        ...

    async def delete_rollout(self, rollout_id: str) -> None:
        """Remove an ended rollout of no run, with its attempts, generations and spans.

        Raises:
            ConflictError: it has not ended, or a run's ledger holds it.
        """
        ...
