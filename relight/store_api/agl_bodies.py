"""Bodies and queries under `/v1/agl`: 0.3's with its defaults, and additional fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from relight.types.queries import MAX_PAGE, AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from relight.types.resources import NamedResources
from relight.types.rollout import AttemptStatus, RolloutConfig, RolloutMode, RolloutStatus
from relight.types.store import EnqueueRolloutRequest
from relight.types.tracer import Span

MAX_WAIT_SECONDS = 60.0


class Strict(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class EnqueueRequest(Strict):
    """Rollouts for the queue, in order."""

    rollouts: list[EnqueueRolloutRequest]


class DequeueRequest(Strict):
    """A claim."""

    limit: int = Field(default=1, le=MAX_PAGE)
    worker_id: str | None = None


class StartRequest(Strict):
    """A rollout that begins at once."""

    input: Any
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    worker_id: str | None = None


class StartAttemptRequest(Strict):
    """One more attempt."""

    worker_id: str | None = None


class CancelRequest(Strict):
    """Why a rollout ends before its time."""

    reason: str = "cancelled"


class UpdateRolloutRequest(Strict):
    """Fields to change; those that are not given stay as they are."""

    input: Any = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class UpdateAttemptRequest(Strict):
    """Fields to change; none of them may be null."""

    status: AttemptStatus | None = None
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None


class UpdateWorkerRequest(Strict):
    """A heartbeat."""

    heartbeat_stats: dict[str, Any] | None = None


class Resources(RootModel[NamedResources]):
    """Resources by name."""


class SpanRequest(Span):
    """A span to keep."""


class SpansRequest(Strict):
    """Spans to keep in one transaction."""

    spans: list[Span]


class NextRequest(Strict):
    """Whose next number is wanted."""

    rollout_id: str
    attempt_id: str


class NextManyRequest(Strict):
    """Whose next numbers are wanted, in order."""

    attempts: list[NextRequest] = Field(max_length=10_000)


class WaitRequest(Strict):
    """Which rollouts to wait for, and how long; null waits as long as one request may."""

    rollout_ids: list[str] = Field(max_length=10_000)
    timeout: float | None = None


class Shown(Strict):
    """Which fields the answer has."""

    fields: Literal["all"] | None = None
    """All fields of what is found, and not only those that 0.3 knows."""


class RolloutSearch(RolloutQuery, Shown):
    """Which rollouts."""


class AttemptSearch(AttemptQuery, Shown):
    """Which attempts of a rollout."""


class WorkerSearch(WorkerQuery, Shown):
    """Which workers."""


class ResourcesSearch(ResourcesQuery, Shown):
    """Which snapshots of resources."""


class SpanSearch(SpanQuery, Shown):
    """Which spans of a rollout; `attempt_id` may be `latest`."""


Search = RolloutSearch | AttemptSearch | WorkerSearch | ResourcesSearch | SpanSearch
