"""The rollout store, with the methods of Agent Lightning 0.3's store: queue, attempts, spans, resources, workers.

Three stores implement it with the same rules: `PostgresLightningStore`, `LightningStoreClient` (HTTP, `/v1/agl`) and
`InMemoryLightningStore`. They share their rows with `AttemptStore`: rollouts that a program enqueues and rollouts that
a run plans differ in how they are dispatched.

The base class packs keyword arguments: those of a query into a class of `types.queries`, a new rollout into an
`EnqueueRolloutRequest`, changes into a dictionary of the arguments that were given. Stores implement the abstract
methods that take these.

Unless a method says otherwise, an unknown rollout or attempt raises NotFoundError, which is also a ValueError, a
change that the state forbids raises ConflictError, and an invalid argument InvalidRequestError, before anything is
written. All times are Unix seconds.

Inputs, metadata, statistics and attributes are any JSON values, nested at most 128 levels deep. They come back as they
were sent, with these exceptions, since Postgres stores them: integers below -2**63 or above 2**64 - 1, NaN and infinity
become text, U+0000 and lone surrogates become other characters, and -0.0 becomes 0.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from relight.types.checking import checked
from relight.types.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from relight.types.resources import NamedResources
from relight.types.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
)
from relight.types.store import (
    UNSET,
    AttemptChanges,
    Dispatch,
    EnqueueRolloutRequest,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    RolloutChanges,
    SortOrder,
    Unset,
    Worker,
    WorkerStatus,
)
from relight.types.tracer import Span

Changes = dict[str, Any]
"""Fields to change, and their values."""


class LightningStore(ABC):
    """Every method of 0.3's store, and additional ones."""

    @property
    @abstractmethod
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""

    @abstractmethod
    def otlp_traces_endpoint(self) -> str:
        """The URL to which spans are exported.

        Raises:
            NotImplementedError: the store lacks the capability `otlp_traces`.
        """

    @abstractmethod
    async def statistics(self) -> LightningStoreStatistics:
        """How much it holds."""

    async def start_rollout(
        self,
        input: Any,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout and begin its attempt 1; the rollout is not queued."""
        return await self._start_rollout(_request(locals()), worker_id, idempotency_key)

    @abstractmethod
    async def _start_rollout(
        self, request: EnqueueRolloutRequest, worker_id: str | None, idempotency_key: str | None
    ) -> AttemptedRollout: ...

    async def enqueue_rollout(
        self,
        input: Any,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        dispatch: Dispatch | None = None,
        run: str | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        """Append a rollout to the queue, pinned to the newest version of its resources.

        Args:
            input: the task, any JSON value.
            resources_id: by default the run's own, or without a run the newest resources; if there are none yet, the
                rollout is pinned when it is first opened. They may be added later, unless a workflow dispatches the
                rollout.
            dispatch: by the queue (default), or by a workflow.
            run: an unfinished run. Its engines serve the rollout's model calls; the rollout waits while the run is
                paused or has no engine ready, and is cancelled when the run ends. It is in none of the run's steps.
            idempotency_key: a second call with this key returns the rollout of the first.

        Raises:
            NotFoundError: a workflow dispatches the rollout, and its resources are unknown; or the run is.
            ConflictError: the run has ended, or is being cancelled.
        """
        (rollout,) = await self.enqueue_many_rollouts([_request(locals())], idempotency_key=idempotency_key)
        return rollout

    @abstractmethod
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, idempotency_key: str | None = None
    ) -> list[Rollout]:
        """Append several rollouts, in order, in one transaction."""

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout of the queue: its next attempt, lease and fence in one transaction; None if it is
        empty.

        A second call with the same key returns the same rollout, so a lost answer loses no rollout.
        """
        claimed = await self.dequeue_many_rollouts(1, worker_id, idempotency_key=idempotency_key)
        return claimed[0] if claimed else None

    @abstractmethod
    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> list[AttemptedRollout]:
        """Claim up to `limit` rollouts; none if it is 0 or less."""

    @abstractmethod
    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """Begin one more attempt at a rollout, regardless of `max_attempts`."""

    @abstractmethod
    async def add_span(self, span: Span) -> Span | None:
        """Store a span, which counts as a sign of life of its attempt; None if it was stored before."""

    @abstractmethod
    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans in one transaction; returns those that were new. If an attempt is unknown, none is stored."""

    @abstractmethod
    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Store an OpenTelemetry `ReadableSpan`; None if it was stored before. Without a `sequence_id` it gets the next
        one.
        """

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """The next sequence id of the rollout, which all its attempts share; they start at 1 and have no gaps."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    @abstractmethod
    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """The next sequence id for each pair of rollout and attempt, in order; a pair may occur several times."""

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
        mode: RolloutMode | None = None,
        run: str | None = None,
        step: int | None = None,
        failure_class: str | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        cursor: str | None = None,
    ) -> PaginatedResult[Rollout]:
        """Rollouts, each with its newest attempt, if any. The filters from `mode` on are always ANDed.

        A `cursor`, empty at first and then each page's `next`, returns the rollouts after the last one read, in order
        of creation.

        Raises:
            InvalidRequestError: an argument is invalid; so for all queries.
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
        """Attempts of a rollout; none if it is unknown."""
        return await self._query_attempts(rollout_id, AttemptQuery.of(locals()))

    @abstractmethod
    async def _query_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]: ...

    @abstractmethod
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """A rollout, with its newest attempt if it has one; None if it is unknown."""

    @abstractmethod
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The newest attempt of a rollout; None if there is none."""

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
        """Resources in all their versions."""
        return await self._query_resources(ResourcesQuery.of(locals()))

    @abstractmethod
    async def _query_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]: ...

    @abstractmethod
    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """The given version, by default the newest; None if it is unknown."""

    @abstractmethod
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The resources that were added or updated last; None if there are none."""

    @abstractmethod
    async def add_resources(self, resources: NamedResources, *, idempotency_key: str | None = None) -> ResourcesUpdate:
        """Store new resources as version 1. A second call with this key returns those of the first.

        Raises:
            InvalidRequestError: they are none, or the key is that of other resources.
        """

    @abstractmethod
    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create resources of this id, or add a version; rollouts keep the version that they are pinned to."""

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
        """Spans of a rollout, of one attempt, or of the newest (`latest`); this scope is always ANDed.

        A `cursor`, empty at first and then each page's `next`, returns the spans after the last one read, in order of
        their sequence ids.
        """
        return await self._query_spans(SpanQuery.of(locals()))

    @abstractmethod
    async def _query_spans(self, query: SpanQuery) -> PaginatedResult[Span]: ...

    @abstractmethod
    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all rollouts have ended, at most `timeout` seconds (None: unlimited); returns those that have
        ended.
        """

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Change the given fields of a rollout. A terminal status ends its waits; `requeuing` queues it again."""
        changes = _given(RolloutChanges, locals(), without=("self", "rollout_id"))
        return await self._update_rollout(rollout_id, changes)

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
        """Change the given fields of an attempt (or of the `latest`). Only the newest attempt's status changes the
        rollout's.

        A superseded attempt may be closed, but not set to `preparing` or `running`.
        """
        changes = _given(AttemptChanges, locals(), without=("self", "rollout_id", "attempt_id"))
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
        """External runners and Relight's own processes."""
        return await self._query_workers(WorkerQuery.of(locals()))

    @abstractmethod
    async def _query_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]: ...

    @abstractmethod
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None if it is unknown."""

    @abstractmethod
    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat of a worker, with statistics if given. The status follows from the worker's attempts.

        Raises:
            TypeError: the statistics are None.
        """

    @abstractmethod
    async def cancel_rollout(self, rollout_id: str, reason: str = "cancelled") -> Rollout:
        """Cancel a rollout: its open attempt is closed, and the attempt's token is revoked."""

    @abstractmethod
    async def delete_rollout(self, rollout_id: str) -> None:
        """Delete an ended rollout from outside, with its attempts, generations and spans.

        Raises:
            ConflictError: it has not ended, or a run planned it.
        """


def _request(arguments: Mapping[str, Any]) -> EnqueueRolloutRequest:
    """The new rollout that a call's arguments describe, not validated: the store does that."""
    return EnqueueRolloutRequest.model_construct(
        **{name: arguments.get(name) for name in EnqueueRolloutRequest.model_fields}
    )


def _given(
    kind: type[RolloutChanges | AttemptChanges], arguments: Mapping[str, Any], *, without: Sequence[str]
) -> Changes:
    """The arguments that were given, checked; None for `metadata` means empty.

    Raises:
        InvalidRequestError: names each that is invalid.
    """
    changes = {name: value for name, value in arguments.items() if name not in without and not isinstance(value, Unset)}
    if changes.get("metadata", ...) is None:
        changes["metadata"] = {}
    valid = checked(kind, changes)
    return {name: getattr(valid, name) for name in changes}
