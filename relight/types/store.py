"""Types of the rollout store, with Agent Lightning 0.3's names and fields, and additional ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field

from relight.types.checking import UnixSeconds
from relight.types.resources import NamedResources
from relight.types.rollout import AttemptStatus, RolloutConfig, RolloutMode, RolloutStatus

T = TypeVar("T")
FilterLogic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]


class Unset:
    """Distinguishes "not given" from an explicit None in updates. There is one, also after pickling."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


class Dispatch(BaseModel):
    """How a rollout is dispatched: by a runner that dequeues it, or by a RolloutWorkflow on a task queue."""

    model_config = ConfigDict(extra="forbid")

    by: Literal["queue", "workflow"] = "queue"
    task_queue: str | None = None
    """Runner queue of the attempts; for `workflow` only."""
    agent: str | None = None
    """The agent that runners serve under this name; for `workflow` only."""


class EnqueueRolloutRequest(BaseModel):
    """A rollout to enqueue."""

    model_config = ConfigDict(extra="forbid")

    input: Any
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    dispatch: Dispatch | None = None
    run: str | None = None
    """The run whose engines serve its model calls, and with which it waits and ends."""


class RolloutChanges(BaseModel):
    """Changes of a rollout: the fields that are set."""

    model_config = ConfigDict(extra="forbid")

    input: Any = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = RolloutStatus.QUEUING
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class AttemptChanges(BaseModel):
    """Changes of an attempt: the fields that are set."""

    model_config = ConfigDict(extra="forbid")

    status: AttemptStatus = AttemptStatus.PREPARING
    worker_id: str = ""
    last_heartbeat_time: UnixSeconds = 0.0
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ResourcesUpdate(BaseModel):
    """A snapshot of named resources."""

    resources_id: str
    create_time: float
    """Unix seconds."""
    update_time: float
    version: int
    resources: NamedResources


class LightningStoreCapabilities(TypedDict, total=False):
    """What a store can do; a missing key means no."""

    thread_safe: bool
    """Threads may call it, each with an event loop of its own."""
    async_safe: bool
    """Tasks of one loop may call it at the same time."""
    zero_copy: bool
    """Other processes may use it, without copying what it holds."""
    otlp_traces: bool
    """It takes spans over OTLP, at `otlp_traces_endpoint`."""


class LightningStoreStatistics(TypedDict):
    """How much a store holds."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    """Seconds for which this process has been serving it."""


class WorkerStatus(StrEnum):
    """What a worker does."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"


class Gpu(BaseModel):
    """A GPU of a worker's host."""

    name: str
    memory_bytes: int


class ProcessFacts(BaseModel):
    """What a process of Relight's says of itself."""

    pid: int | None = None
    version: str | None = None
    """Of Relight."""
    serves: list[str] = Field(default_factory=list[str])
    """Agents and graders."""
    queues: list[str] = Field(default_factory=list[str])
    """Temporal's task queues that it polls."""
    doing: list[str] = Field(default_factory=list[str])
    """Rollouts, or activities and what they are about; newest last."""
    memory_bytes: int | None = None
    """Resident, that of its children too."""
    gpus: list[Gpu] = Field(default_factory=list[Gpu])


class Worker(ProcessFacts):
    """A process of the platform or of an external runner, as the store knows it. All times are Unix seconds.

    0.3 knows the fields from `worker_id` to `current_attempt_id`; the others are of Relight's own processes.
    """

    worker_id: str
    status: WorkerStatus = WorkerStatus.UNKNOWN
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
    kind: str = "external"
    """external, runner, orchestrator, gateway, gpu-worker or store."""
    host: str | None = None


class PaginatedResult(Sequence[T], Generic[T]):
    """A page of a query's results: a list with its position and the total."""

    def __init__(
        self, items: Sequence[T], *, limit: int, offset: int, total: int, following: str | None = None
    ) -> None:
        self.items = list(items)
        self.limit = limit
        self.offset = offset
        self.total = total
        self.next = following
        """The cursor of the next page, if the query used cursors; None: this is the last page."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"PaginatedResult({self.items!r}, limit={self.limit}, offset={self.offset}, total={self.total})"
