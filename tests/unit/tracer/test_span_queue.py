"""The queue of spans that are of no attempt of this process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from relight.emitter.scope import Scope, close_scope, open_scope
from relight.tracer.processor import AttemptSpanProcessor
from relight.tracer.span_queue import SpanQueue, open_queue

NOWHERE = "http://127.0.0.1:9/v1/traces"


class Store:
    """A store that answers as it is told, and keeps what it accepted."""

    def __init__(self) -> None:
        self.status = 200
        self.names: list[str] = []
        self.keys: list[str | None] = []
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if store.status == 200:
                    spans = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
                    store.names += [span.name for span in spans]
                store.keys.append(self.headers["authorization"])
                self.send_response(store.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def store() -> Generator[Store]:
    store = Store()
    yield store
    store.close()


def span(name: str) -> ReadableSpan:
    with TracerProvider().get_tracer("test").start_as_current_span(name) as made:
        pass
    assert isinstance(made, ReadableSpan)
    return made


def test_what_could_not_be_sent_is_sent_by_the_next_process_in_its_order(store: Store, tmp_path: Path) -> None:
    before = SpanQueue(NOWHERE, {}, tmp_path)
    for name in ("one", "two"):
        before.export([span(name)])
    assert (before.dropped, len(list(tmp_path.iterdir()))) == (0, 2)
    after = SpanQueue(f"{store.url}/v1/traces", {"authorization": "Bearer key"}, tmp_path)
    after.export([span("three")])
    assert (store.names, set(store.keys)) == (["one", "two", "three"], {"Bearer key"})
    assert list(tmp_path.iterdir()) == []


def test_an_outage_is_waited_out_and_a_refusal_is_counted(store: Store, tmp_path: Path) -> None:
    queue = SpanQueue(f"{store.url}/v1/traces", {}, tmp_path)
    store.status = 503
    queue.export([span("waits")])
    assert len(list(tmp_path.iterdir())) == 1
    store.status = 403
    assert queue.force_flush()
    assert (queue.dropped, list(tmp_path.iterdir())) == (1, [])


def test_a_full_queue_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    queue = SpanQueue(NOWHERE, {}, tmp_path, max_bytes=2 * len(b"x") + 600)
    for number in range(9):
        queue.export([span(f"span {number}")])
    kept = sorted(tmp_path.iterdir())
    assert 0 < len(kept) < 9
    assert queue.dropped == 9 - len(kept)
    assert b"span 8" in kept[-1].read_bytes()


def test_spans_of_no_attempt_go_to_the_store_that_the_environment_names(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_queue() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", store.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    processor, provider = AttemptSpanProcessor(), TracerProvider()
    processor.open_queue = partial(open_queue, folder=tmp_path)
    provider.add_span_processor(processor)
    provider.get_tracer("test").start_span("outside").end()
    scope = Scope("0" * 32, lambda _: None)
    open_scope(scope)
    provider.get_tracer("test").start_span("of an attempt").end()
    close_scope(scope)
    assert provider.force_flush()
    assert (store.names, store.keys) == (["outside"], ["Bearer secret"])
    provider.shutdown()
