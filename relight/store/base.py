"""The store of rollouts as Agent Lightning 0.3's users know it: queue, attempts, spans, resources, workers.

Three stores implement it with the same rules: `PostgresLightningStore`, `LightningStoreClient` (HTTP, `/v1/agl`) and
`InMemoryLightningStore`. The rows are those of `AttemptStore`: a rollout that a program enqueues and one that a run
plans differ in who dispatches them.

What a call is given by keyword is packed here: a query into its class of `types.queries`, a rollout to be into an
`EnqueueRolloutRequest`, and changes into a dictionary of those that were given. Stores implement what takes these.

Where not said otherwise an unknown rollout or attempt raises NotFoundError, which is a ValueError too, and a change
that the state forbids raises ConflictError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from relight.types.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
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

Changes = dict[str, Any]
"""Fields to change, and their values."""


class LightningStore(ABC):
    """Every method of 0.3's store, and what its users asked for."""

    @property
    @abstractmethod
    def capabilities(self) -> dict[str, bool]:
        """thread_safe, async_safe, zero_copy, otlp_traces; a missing one is false."""

    @abstractmethod
    def otlp_traces_endpoint(self) -> str:
        """URL that spans are exported to.

        Raises:
            NotImplementedError: the capability `otlp_traces` is not there.
        """

    @abstractmethod
    async def statistics(self) -> dict[str, Any]:
        """name, total_rollouts, total_attempts, total_spans, total_resources, total_workers, uptime (seconds)."""

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
        return await self._start_rollout(_request(locals()), worker_id, idempotency_key)

    @abstractmethod
    async def _start_rollout(
        self, request: EnqueueRolloutRequest, worker_id: str | None, idempotency_key: str | None
    ) -> AttemptedRollout: ...

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
        """A rollout at the end of the queue, pinned to a version of its resources: the newest of those that are named,
        else of the newest; where there are none yet, of the newest when it is first opened. A rollout that a workflow
        dispatches needs those that it names."""
        (rollout,) = await self.enqueue_many_rollouts([_request(locals())], idempotency_key=idempotency_key)
        return rollout

    @abstractmethod
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Several, in order, in one transaction."""

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout in the queue: its next attempt, lease and fence in one transaction.

        With the same key again it answers with the same rollout, so that a lost answer loses no rollout.
        """
        claimed = await self.dequeue_many_rollouts(1, worker_id, idempotency_key=idempotency_key)
        return claimed[0] if claimed else None

    @abstractmethod
    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit`; none where it is 0 or less."""

    @abstractmethod
    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """One more attempt by hand, whatever `max_attempts` says."""

    @abstractmethod
    async def add_span(self, span: Span) -> Span | None:
        """Keep a span, which is a sign of life of its attempt; None where it is there already."""

    @abstractmethod
    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Keep spans in one transaction; those that were new."""

    @abstractmethod
    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Keep an OpenTelemetry `ReadableSpan`."""

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Next number of the rollout, which all its attempts share; starts at 1, without gaps."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    @abstractmethod
    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """One for each pair, in order; a pair may come several times."""

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
        cursor: str | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts, each with its newest attempt where it has one. The filters from `mode` on are always ANDed.

        A `cursor`, empty at first and then each page's `next`, pages by what was read: in the order of their making.
        """
        return await self._query_rollouts(RolloutQuery.of(locals()))

    @abstractmethod
    async def _query_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout]: ...

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
        return await self._query_attempts(rollout_id, AttemptQuery.of(locals()))

    @abstractmethod
    async def _query_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]: ...

    @abstractmethod
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """None where it is unknown."""

    @abstractmethod
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """None where there is none."""

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
        return await self._query_resources(ResourcesQuery.of(locals()))

    @abstractmethod
    async def _query_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]: ...

    @abstractmethod
    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """The newest version, or the one that is named; None where it is unknown."""

    @abstractmethod
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or updated last."""

    @abstractmethod
    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """A new snapshot, version 1."""

    @abstractmethod
    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create it, or add a version; rollouts stay with the version that they are pinned to."""

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
        cursor: str | None = None,
    ) -> PaginatedResult[Span]:
        """Spans of a rollout, of one attempt, or of the newest (`latest`); that scope is always ANDed.

        A `cursor`, empty at first and then each page's `next`, pages by what was read: in the order of their numbers.
        """
        return await self._query_spans(SpanQuery.of(locals()))

    @abstractmethod
    async def _query_spans(self, query: SpanQuery) -> PaginatedResult[Span]: ...

    @abstractmethod
    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Those that have ended, at once when all have, else after `timeout` seconds; None waits without end."""

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
        return await self._update_rollout(rollout_id, _given(locals(), without=("self", "rollout_id")))

    @abstractmethod
    async def _update_rollout(self, rollout_id: str, changes: Changes) -> Rollout: ...

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        """Change an attempt (or `latest`). Only the newest one's status moves the rollout on.

        One that a newer attempt has superseded may be closed, but doesn't run again.
        """
        changes = _given(locals(), without=("self", "rollout_id", "attempt_id"))
        return await self._update_attempt(rollout_id, attempt_id, changes)

    @abstractmethod
    async def _update_attempt(self, rollout_id: str, attempt_id: str, changes: Changes) -> Attempt: ...

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
        return await self._query_workers(WorkerQuery.of(locals()))

    @abstractmethod
    async def _query_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]: ...

    @abstractmethod
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None where it is unknown."""

    @abstractmethod
    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """A heartbeat, which may bring statistics. It can't set the status.

        Raises:
            TypeError: statistics that are None.
        """

    @abstractmethod
    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """End a rollout: its open attempt is fenced off and its token is good for nothing any more."""

    @abstractmethod
    async def delete_rollout(self, rollout_id: str) -> None:
        """Remove an ended rollout of no run, with its attempts, generations and spans.

        Raises:
            ConflictError: it has not ended, or a run's ledger holds it.
        """


def _request(arguments: Mapping[str, Any]) -> EnqueueRolloutRequest:
    """The rollout that a call asks for by its arguments, unchecked."""
    return EnqueueRolloutRequest.model_construct(
        **{name: arguments.get(name) for name in EnqueueRolloutRequest.model_fields}
    )


def _given(arguments: Mapping[str, Any], *, without: Sequence[str]) -> Changes:
    """The arguments that were given; metadata that are None are empty."""
    changes = {name: value for name, value in arguments.items() if name not in without and not isinstance(value, Unset)}
    if "metadata" in changes:
        changes["metadata"] = changes["metadata"] or {}
    return changes
