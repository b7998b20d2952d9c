"""Durable reinforcement learning for AI agents: what agent authors import.

Importing this package loads no torch, no Temporal and no database driver. The module of each name is imported when the
name is first used, so that `relight --help` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.exports import getter

if TYPE_CHECKING:
    from relight.adapter import (
        Adapter,
        LlmProxyTraceToTriplet,
        OtelTraceAdapter,
        TraceAdapter,
        TracerTraceToTriplet,
        TraceToMessages,
        TraceToTripletBase,
    )
    from relight.adapter.triplet import Triplet
    from relight.emitter import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        find_final_reward,
        find_reward_spans,
        get_message_value,
        get_object_value,
        get_reward_value,
        get_rewards_from_span,
        is_reward_span,
        operation,
    )
    from relight.errors import RelightError
    from relight.litagent import LitAgent, llm_rollout, prompt_rollout, rollout
    from relight.runner import LitAgentRunner, Runner
    from relight.store.base import LightningStore
    from relight.store.client import LightningStoreClient
    from relight.store.memory.lightning import InMemoryLightningStore
    from relight.store.threading import LightningStoreThreaded
    from relight.store_api.lightning_server import LightningStoreServer
    from relight.tracer import (
        AgentOpsTracer,
        DummyTracer,
        OtelTracer,
        Tracer,
        WeaveTracer,
        clear_active_tracer,
        get_active_tracer,
        set_active_tracer,
    )
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
    from relight.types.run_file import RunFile
    from relight.types.store import (
        EnqueueRolloutRequest,
        LightningStoreCapabilities,
        LightningStoreStatistics,
        PaginatedResult,
        ResourcesUpdate,
        Worker,
        WorkerStatus,
    )
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

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Adapter",
    "AgentOpsTracer",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Dataset",
    "DummyTracer",
    "EnqueueRolloutRequest",
    "Event",
    "FailureClass",
    "FilterField",
    "FilterOptions",
    "GenericResponse",
    "Hook",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "Link",
    "LitAgent",
    "LitAgentRunner",
    "LlmProxyTraceToTriplet",
    "NamedResources",
    "OtelResource",
    "OtelTraceAdapter",
    "OtelTracer",
    "PaginatedResult",
    "ParallelWorkerBase",
    "PromptTemplate",
    "ProxyLLM",
    "RelightError",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutLegacy",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "RunFile",
    "Runner",
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
    "TraceAdapter",
    "TraceState",
    "TraceStatus",
    "TraceToMessages",
    "TraceToTripletBase",
    "Tracer",
    "TracerTraceToTriplet",
    "Triplet",
    "WeaveTracer",
    "Worker",
    "WorkerStatus",
    "clear_active_tracer",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_active_tracer",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "rollout",
    "set_active_tracer",
]

_HOMES = {
    "relight.tracer": (
        "AgentOpsTracer",
        "DummyTracer",
        "OtelTracer",
        "Tracer",
        "WeaveTracer",
        "clear_active_tracer",
        "get_active_tracer",
        "set_active_tracer",
    ),
    "relight.types.tracer": (
        "AttributeValue",
        "Attributes",
        "Event",
        "Link",
        "OtelResource",
        "Span",
        "SpanAttributeNames",
        "SpanContext",
        "SpanCoreFields",
        "SpanLike",
        "SpanNames",
        "SpanRecordingContext",
        "StatusCode",
        "TraceState",
        "TraceStatus",
    ),
    "relight.adapter": (
        "Adapter",
        "LlmProxyTraceToTriplet",
        "OtelTraceAdapter",
        "TraceAdapter",
        "TraceToMessages",
        "TraceToTripletBase",
        "TracerTraceToTriplet",
    ),
    "relight.adapter.triplet": ("Triplet",),
    "relight.emitter": (
        "emit_annotation",
        "emit_exception",
        "emit_message",
        "emit_object",
        "emit_reward",
        "find_final_reward",
        "find_reward_spans",
        "get_message_value",
        "get_object_value",
        "get_reward_value",
        "get_rewards_from_span",
        "is_reward_span",
        "operation",
    ),
    "relight.errors": ("RelightError",),
    "relight.litagent": (
        "LitAgent",
        "llm_rollout",
        "prompt_rollout",
        "rollout",
    ),
    "relight.runner": ("LitAgentRunner", "Runner"),
    "relight.store.base": ("LightningStore",),
    "relight.store.client": ("LightningStoreClient",),
    "relight.store.memory.lightning": ("InMemoryLightningStore",),
    "relight.store.threading": ("LightningStoreThreaded",),
    "relight.store_api.lightning_server": ("LightningStoreServer",),
    "relight.types.core": (
        "Dataset",
        "FilterField",
        "FilterOptions",
        "ParallelWorkerBase",
        "RolloutRawResult",
        "SortOptions",
        "TaskInput",
    ),
    "relight.types.legacy": (
        "GenericResponse",
        "RolloutLegacy",
        "Task",
        "TaskIfAny",
    ),
    "relight.types.resources": (
        "LLM",
        "NamedResources",
        "PromptTemplate",
        "ProxyLLM",
        "Resource",
        "ResourceUnion",
    ),
    "relight.types.rollout": (
        "Attempt",
        "AttemptStatus",
        "AttemptedRollout",
        "FailureClass",
        "Rollout",
        "RolloutConfig",
        "RolloutMode",
        "RolloutStatus",
    ),
    "relight.types.hooks": ("Hook",),
    "relight.types.run_file": ("RunFile",),
    "relight.types.store": (
        "EnqueueRolloutRequest",
        "LightningStoreStatistics",
        "LightningStoreCapabilities",
        "PaginatedResult",
        "ResourcesUpdate",
        "Worker",
        "WorkerStatus",
    ),
}
__getattr__ = getter(__name__, {name: module for module, names in _HOMES.items() for name in names})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
