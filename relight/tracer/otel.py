"""A tracer on OpenTelemetry's SDK: everything that a library records there is recorded."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from relight.emitter.attributes import safe_text
from relight.store.base import LightningStore
from relight.tracer.base import Tracer
from relight.types.otel_spans import NANOSECONDS
from relight.types.tracer import Span, SpanCoreFields, StatusCode, TraceStatus

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Instrument = Sequence[str] | Literal["all"]
NAME = "relight"


class OtelTracer(Tracer):
    """Records the spans of OpenTelemetry's SDK, and makes those of emitters with it.

    A provider that exists gets a processor, and so does one that is set later; other processors keep getting all spans.
    The SDK is imported when the tracer is first initialised.
    """

    def __init__(
        self,
        instrument: Instrument = (),
        *,
        endpoint: str | None = None,
        headers: Mapping[str, str] | None = None,
        queue_folder: Path | str | None = None,
    ) -> None:
        """Describe a tracer; nothing is changed before `init_worker`.

        Args:
            instrument: names of instrumentors to switch on (`opentelemetry_instrumentor` entry points, such as
                `openai`), or `all` that are installed.
            endpoint: where spans go that are of no attempt of this process: the address of a store, without
                `/v1/traces`; by default OTEL_EXPORTER_OTLP_ENDPOINT. Without one they are not kept.
            headers: of requests to it; by default OTEL_EXPORTER_OTLP_HEADERS.
            queue_folder: where they wait for it; by default a folder for the endpoint under `~/.cache/relight/spans`.
        """
        self.instrument = instrument
        self.instrumented: list[str] = []
        """The instrumentors that are on."""
        self._endpoint, self._headers, self._queue_folder = endpoint, headers, queue_folder

    def init_worker(self, worker_id: int, store: LightningStore | None = None, *args: Any, **kwargs: Any) -> None:
        """Attach to the SDK and switch the instrumentors on.

        Raises:
            ValueError: an instrumentor is not installed, or failed.
        """
        super().init_worker(worker_id, store)
        from relight.tracer.instrumentors import switch_on
        from relight.tracer.processor import processor
        from relight.tracer.span_queue import open_queue

        provider = self._provider()
        self.instrumented = switch_on(self.instrument, provider)
        processor().open_queue = partial(open_queue, self._endpoint, self._headers, self._queue_folder)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Switch the instrumentors off again. The processor stays, as the SDK can't remove one."""
        from relight.tracer.instrumentors import switch_off
        from relight.tracer.processor import processor

        processor().force_flush()
        switch_off(self.instrumented)
        self.instrumented = []
        super().teardown_worker(worker_id)

    def _provider(self) -> TracerProvider:
        from relight.tracer.processor import provider

        return provider()

    def _tracer(self) -> Any:
        if self.worker_id is None:
            raise RuntimeError("the tracer is not initialised: call init_worker(), or use lifespan()")
        return self._provider().get_tracer(NAME)

    def _handle(self) -> Any:
        return self._tracer()

    def get_last_trace(self) -> list[Span]:
        """As `Tracer.get_last_trace`.

        Raises:
            RuntimeError: the tracer was never initialised.
        """
        if self._recording is None:
            self._tracer()
        return super().get_last_trace()

    def create_span(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        at = _nanoseconds(timestamp)
        span = self._tracer().start_span(name, attributes=attributes, start_time=at)
        recorded = OtelRecordedSpan(span)
        if status is not None:
            recorded.record_status(status.status_code, status.description)
        span.end(at)
        return recorded.get_recorded_span()

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Generator[OtelRecordedSpan]:
        """A span around a block, the current one of OpenTelemetry. Times are Unix seconds."""
        from opentelemetry.trace import use_span

        span = self._tracer().start_span(name, attributes=attributes, start_time=_nanoseconds(start_time))
        recorded = OtelRecordedSpan(span)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield recorded
        except BaseException as error:
            recorded.record_exception(error)
            raise
        finally:
            span.end(_nanoseconds(end_time))


class OtelRecordedSpan:
    """A span of OpenTelemetry under way: a `SpanRecordingContext`."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception as an event, and set the status ERROR."""
        self._span.record_exception(exception)
        self.record_status("ERROR", safe_text(exception))

    def record_attributes(self, attributes: dict[str, Any]) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None:
        """Set the status. OpenTelemetry keeps a description of errors only, and lets nothing replace OK."""
        from opentelemetry.trace import Status
        from opentelemetry.trace import StatusCode as OtelStatusCode

        code = OtelStatusCode[status_code]
        self._span.set_status(Status(code, description if code is OtelStatusCode.ERROR else None))

    def get_otel_span(self) -> Any:
        """OpenTelemetry's span."""
        return self._span

    def get_recorded_span(self) -> SpanCoreFields:
        """What was recorded so far.

        Raises:
            ValueError: the sampler left the span out, so nothing was.
        """
        if not self._span.is_recording() and not hasattr(self._span, "attributes"):
            raise ValueError("OpenTelemetry's sampler left the span out: nothing of it was recorded")
        span = Span.from_opentelemetry(self._span, "", "", 0)
        return SpanCoreFields.model_validate(span.model_dump(include=set(SpanCoreFields.model_fields)))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * NANOSECONDS)
