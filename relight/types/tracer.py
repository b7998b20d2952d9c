"""Spans and their parts, with Agent Lightning 0.3's names and fields. They mirror OpenTelemetry's data model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from os import urandom
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from relight.semconv import AGL_VIRTUAL
from relight.types import otel_spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
"""What OpenTelemetry allows as the value of an attribute. The store keeps nested values too."""
Attributes: TypeAlias = dict[str, Any]
TraceState: TypeAlias = dict[str, str]
StatusCode = Literal["UNSET", "OK", "ERROR"]
SpanLike: TypeAlias = "ReadableSpan | Span"


def _state_or_none(value: Any) -> Any:
    """OpenTelemetry's `to_json` writes a trace state as text, which says nothing of its members."""
    return value if isinstance(value, dict) else {}


NEXT_NUMBER = -1
"""The sequence id of a span for which the store issues one."""


class _Part(BaseModel):
    """A part of a span. Unknown keys are kept."""

    model_config = ConfigDict(extra="allow")


class SpanContext(_Part):
    """Which span it is."""

    trace_id: str = ""
    """32 hex digits."""
    span_id: str = ""
    """16 hex digits."""
    is_remote: bool = False
    trace_state: Annotated[TraceState, BeforeValidator(_state_or_none)] = Field(default_factory=dict)

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Self:
        """OpenTelemetry's `SpanContext`."""
        return cls.model_validate(otel_spans.context_of(src))


class TraceStatus(_Part):
    """OpenTelemetry's status of a span."""

    status_code: StatusCode = "UNSET"
    description: str | None = None

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Self:
        """OpenTelemetry's `Status`."""
        return cls(status_code=src.status_code.name, description=src.description)


class Event(_Part):
    """Something that happened during a span."""

    name: str = ""
    attributes: Attributes = Field(default_factory=dict)
    timestamp: float | None = None
    """Unix seconds."""

    @field_validator("name", mode="before")
    @classmethod
    def _take_any_name(cls, value: Any) -> str:
        return value if isinstance(value, str) else "" if value is None else str(value)

    @field_validator("attributes", mode="before")
    @classmethod
    def _take_none(cls, value: Any) -> Any:
        return {} if value is None else value

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Self:
        """OpenTelemetry's `Event`."""
        return cls.model_validate(otel_spans.event_of(src))


class Link(_Part):
    """A relation to another span."""

    context: SpanContext = Field(default_factory=SpanContext)
    attributes: Attributes | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_flat_ids(cls, value: Any) -> Any:
        """OTLP has the other span's ids beside the attributes."""
        if isinstance(value, Mapping) and "context" not in value and "span_id" in value:
            link = cast("Mapping[str, Any]", value)
            return {**link, "context": {"trace_id": link.get("trace_id", ""), "span_id": link["span_id"]}}
        return cast("Any", value)

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Self:
        """OpenTelemetry's `Link`."""
        return cls.model_validate(otel_spans.link_of(src))


class OtelResource(_Part):
    """What a process says of itself. Not to be confused with the resources of a rollout."""

    attributes: Attributes = Field(default_factory=dict)
    schema_url: str = ""

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Self:
        """OpenTelemetry's `Resource`."""
        return cls.model_validate(otel_spans.resource_of(src))


class SpanCoreFields(BaseModel):
    """What the creator of a span knows of it; ids and position are the tracer's."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None
    """Unix seconds."""
    end_time: float | None


class SpanRecordingContext(Protocol):
    """Records what happens during a span. Who opened the span ends it."""

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception, and set the status ERROR."""
        ...

    def record_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""
        ...

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the status."""
        ...

    def get_recorded_span(self) -> SpanCoreFields:
        """What was recorded so far.

        Raises:
            ValueError: the tracer keeps nothing of the span, or only once it has ended.
        """
        ...


class Span(BaseModel):
    """A span of an attempt. Unknown keys are kept."""

    model_config = ConfigDict(extra="allow")

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Its place in the rollout; below 0, the store is to give it one."""
    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None = None
    name: str
    status: TraceStatus = Field(default_factory=TraceStatus)
    attributes: Attributes = Field(default_factory=dict)
    events: list[Event] = Field(default_factory=list[Event])
    links: list[Link] = Field(default_factory=list[Link])
    start_time: float | None = None
    """Unix seconds."""
    end_time: float | None = None
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = Field(default_factory=OtelResource)

    @classmethod
    def from_opentelemetry(cls, src: Any, rollout_id: str, attempt_id: str, sequence_id: int) -> Self:
        """OpenTelemetry's `ReadableSpan`; one that was made by hand without ids has zeros, as OpenTelemetry's invalid
        span has. Exact times are kept as `start_time_unix_nano` and `end_time_unix_nano`.
        """
        fields = otel_spans.fields_of(src)
        fields["trace_id"] = fields["trace_id"] or "0" * 32
        fields["span_id"] = fields["span_id"] or "0" * 16
        fields["context"] = src.context and otel_spans.context_of(src.context)
        fields["parent"] = src.parent and otel_spans.context_of(src.parent)
        return cls.from_emitted(fields, rollout_id, attempt_id, sequence_id)

    @classmethod
    def from_emitted(cls, fields: Mapping[str, Any], rollout_id: str, attempt_id: str, sequence_id: int) -> Self:
        """A span as an agent's process sends it: its status as text, and what has no column under `extra`."""
        own = dict(fields)
        status = {"status_code": own.pop("status"), "description": own.pop("status_description")}
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": sequence_id}
        return cls.model_validate({**own.pop("extra", {}), **own, **ids, "status": status})

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Attributes,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> Self:
        """A span that no tracer made. Its ids are random unless they are given; its status is OK unless given."""
        trace_id, span_id = trace_id or urandom(16).hex(), span_id or urandom(8).hex()
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name or AGL_VIRTUAL,
            status=status or TraceStatus(status_code="OK"),
            attributes=attributes,
            start_time=start_time,
            end_time=end_time,
            context=SpanContext(trace_id=trace_id, span_id=span_id),
            parent=SpanContext(trace_id=trace_id, span_id=parent_id) if parent_id else None,
            resource=resource or OtelResource(),
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
    ) -> Self:
        """A span with random ids. Without a start it starts now."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            start_time=core.start_time or time.time(),
            end_time=core.end_time,
            status=core.status,
        )


def as_plain(value: Any) -> Any:
    """A span or a part of one as dictionaries and lists; values of attributes are not copied."""
    if isinstance(value, BaseModel):
        return {name: as_plain(item) for name, item in value}
    if isinstance(value, list):
        return [as_plain(item) if isinstance(item, BaseModel) else item for item in value]  # type: ignore[misc]
    return value


class SpanNames(StrEnum):
    """Names of spans and of the attributes that name their attempt, as 0.2 listed them; `relight.semconv` has all."""

    REWARD = "agentlightning.reward"
    MESSAGE = "agentlightning.message"
    OBJECT = "agentlightning.object"
    EXCEPTION = "agentlightning.exception"
    VIRTUAL = "agentlightning.virtual"
    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"


class SpanAttributeNames(StrEnum):
    """Attributes of 0.2's message and object spans."""

    MESSAGE = "message"
    OBJECT = "object"
