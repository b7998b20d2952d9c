"""Types that several packages share: rollouts, the run file, payloads, wire messages. They import pydantic alone.

Importing this package loads none of them; each is imported when its name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.exports import getter

if TYPE_CHECKING:
    from relight.types.core import (
        Dataset,
        FilterField,
        FilterOptions,
        ParallelWorkerBase,
        RolloutRawResult,
        SortOptions,
        TaskInput,
    )
    from relight.types.hooks import Hook
    from relight.types.legacy import GenericResponse, RolloutLegacy, Task, TaskIfAny
    from relight.types.resources import LLM, NamedResources, PromptTemplate, ProxyLLM, Resource, ResourceUnion
    from relight.types.rollout import (
        Attempt,
        AttemptedRollout,
        AttemptStatus,
        FailureClass,
        Rollout,
        RolloutConfig,
        RolloutMode,
        RolloutStatus,
    )
    from relight.types.store import EnqueueRolloutRequest, PaginatedResult, ResourcesUpdate, Worker, WorkerStatus
    from relight.types.tracer import (
        Attributes,
        AttributeValue,
        Event,
        Link,
        OtelResource,
        Span,
        SpanAttributeNames,
        SpanContext,
        SpanCoreFields,
        SpanLike,
        SpanNames,
        SpanRecordingContext,
        StatusCode,
        TraceState,
        TraceStatus,
    )

__all__ = [
    "LLM",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Dataset",
    "EnqueueRolloutRequest",
    "Event",
    "FailureClass",
    "FilterField",
    "FilterOptions",
    "GenericResponse",
    "Hook",
    "Link",
    "NamedResources",
    "OtelResource",
    "PaginatedResult",
    "ParallelWorkerBase",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutLegacy",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "SortOptions",
    "Span",
    "SpanAttributeNames",
    "SpanContext",
    "SpanCoreFields",
    "SpanLike",
    "SpanNames",
    "SpanRecordingContext",
    "StatusCode",
    "Task",
    "TaskIfAny",
    "TaskInput",
    "TraceState",
    "TraceStatus",
    "Worker",
    "WorkerStatus",
]

__getattr__ = getter(__name__, dict.fromkeys([*__all__, "Triplet"], "relight"))
