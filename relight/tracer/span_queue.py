"""A queue on disk for spans that are of no attempt of this process.

Each batch is written to a file and then posted after those before it, in their order. What can't be posted stays, also
for the next process, until the folder holds too much: then the oldest batches are dropped and counted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.util.re import parse_env_headers

log = logging.getLogger(__name__)
MAX_BYTES: Final = 64 * 2**20
"""What a queue may hold."""
POST_SECONDS: Final = 10.0
TRACES: Final = "/v1/traces"
PROTOBUF: Final = {"Content-Type": "application/x-protobuf"}
REFUSED: Final = range(400, 500)
"""Answers after which the same request is not accepted either, but for RETRY."""
RETRY: Final = frozenset({408, 425, 429})


def open_queue(
    endpoint: str | None = None, headers: Mapping[str, str] | None = None, folder: Path | str | None = None
) -> BatchSpanProcessor | None:
    """The queue for a store; None if neither the arguments nor OTEL_EXPORTER_OTLP_ENDPOINT name one."""
    endpoint = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return None
    if headers is None:
        headers = parse_env_headers(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""), liberal=True)
    url = endpoint.rstrip("/") + TRACES
    return BatchSpanProcessor(SpanQueue(url, headers, Path(folder) if folder else _folder_for(url)))


def _folder_for(url: str) -> Path:
    return Path.home() / ".cache" / "relight" / "spans" / hashlib.sha256(url.encode()).hexdigest()[:16]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # another process has posted it
        return 0


class SpanQueue(SpanExporter):
    """Posts batches by way of a folder."""

    def __init__(self, url: str, headers: Mapping[str, str], folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.url = url
        self.dropped = 0
        """Batches that the store refused, or for which the folder had no room."""
        self._folder, self._max_bytes = folder, max_bytes
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.update({**headers, **PROTOBUF})
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write a batch, and post what waits."""
        with self._lock:
            self._write(encode_spans(spans).SerializeToString())
            return SpanExportResult.SUCCESS if self._post_all() else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Post what waits; false if something still does."""
        with self._lock:
            return self._post_all()

    def shutdown(self) -> None:
        """Close the connection; what waits stays in the folder."""
        self._session.close()

    def _write(self, batch: bytes) -> None:
        path = self._folder / f"{time.time_ns():020}-{os.getpid()}.otlp"
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(batch)
        unfinished.rename(path)
        files = self._waiting()
        held = sum(map(_size, files))
        while held > self._max_bytes and files:
            held -= _size(files[0])
            self._drop(files.pop(0), f"the span queue {self._folder} holds more than {self._max_bytes} bytes")

    def _waiting(self) -> list[Path]:
        return sorted(self._folder.glob("*.otlp"))

    def _drop(self, file: Path, why: str) -> None:
        self.dropped += 1
        log.warning("a batch of spans was dropped, %d so far: %s", self.dropped, why)
        file.unlink(missing_ok=True)

    def _post_all(self) -> bool:
        for file in self._waiting():
            try:
                answer = self._session.post(self.url, data=file.read_bytes(), timeout=POST_SECONDS)
            except FileNotFoundError:
                continue  # another process has posted it
            except requests.RequestException as error:
                log.info("spans wait in %s: %s", self._folder, error)
                return False
            if answer.status_code in REFUSED and answer.status_code not in RETRY:
                self._drop(file, f"{self.url} answered {answer.status_code}: {answer.text[:200]}")
            elif not answer.ok:
                return False
            else:
                file.unlink(missing_ok=True)
        return True
