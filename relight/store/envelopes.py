"""Bodies of store requests that are lists, or too small for a type in `relight.types.wire`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from relight.types.wire import (
    CallFailure,
    CommitResult,
    DeliveryMark,
    EngineInfo,
    GenerationRecord,
    Message,
    SpanRecord,
)

MAX_ITEMS = 1000
"""Most items in one request."""


class Beat(Message):
    """An attempt's runner is alive."""

    attempt_id: str
    fence: int
    worker_id: str


class SpanBatch(Message):
    """Spans of one attempt. Without a fence they are kept, and change nothing else."""

    rollout_id: str
    attempt_id: str
    fence: int | None = None
    spans: list[SpanRecord] = Field(max_length=10_000)


class SpansStored(Message):
    """How many of them were new."""

    stored: int


class GenerationBatch(Message):
    """Model calls to commit."""

    items: list[GenerationRecord] = Field(max_length=MAX_ITEMS)


class CommitResults(Message):
    """One result for each item, in order."""

    items: list[CommitResult]


class FailureBatch(Message):
    """Model calls that the platform failed."""

    items: list[CallFailure] = Field(max_length=MAX_ITEMS)


class DeliveryBatch(Message):
    """What became of answers."""

    items: list[DeliveryMark] = Field(max_length=MAX_ITEMS)


class EngineList(Message):
    """Engines that take calls."""

    items: list[EngineInfo]


class WorkerReport(Message):
    """A process says that it is there; sent every 10 s."""

    worker_id: str
    kind: str
    """runner, orchestrator, gateway, gpu-worker or store."""
    host: str
    pid: int | None = None
    serves: list[str] = Field(default_factory=list[str])
    """Agents that it runs."""
    heartbeat_stats: dict[str, Any] = Field(default_factory=dict[str, Any])


class Nothing(Message):
    """An answer without content."""
