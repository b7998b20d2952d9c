"""What a span of an attempt costs, as a ratio to the same span with the bare SDK; and what `import relight` takes.

    python -m benchmarks.traced_spans [--spans 5000] [--rounds 7] [--json]

The span has six attributes, an event and a status, as a model call has. Bare: OpenTelemetry's SDK with its own
processor and an exporter that does nothing. Traced: in place of these the tracer's processor, which sends the span over
the runner's channel; a child process reads it. Processor time of this process; medians of rounds that take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode, Tracer

from relight.emitter.scope import set_process_scope
from relight.runner import frames
from relight.runner.agent_process import Reporter
from relight.tracer.processor import AttemptSpanProcessor

ATTRIBUTES = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "policy",
    "gen_ai.response.id": "chatcmpl-0123456789",
    "gen_ai.usage.input_tokens": 120,
    "gen_ai.usage.output_tokens": 40,
    "gen_ai.request.temperature": 0.7,
}
WANTED_RATIO, WANTED_IMPORT_MILLISECONDS = 2.0, 60.0


class Nowhere(SpanExporter):
    """Exports nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def runner() -> Generator[socket.socket]:
    """The agent's end of a channel whose other end a child process reads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        theirs.close()
        while ours.recv(frames.MAX_DATAGRAM_BYTES):
            pass
        os._exit(0)
    ours.close()
    with theirs:
        yield theirs
    os.waitpid(pid, 0)


def spans(tracer: Tracer, count: int) -> None:
    """Make spans one after the other."""
    for _ in range(count):
        with tracer.start_as_current_span("chat policy", attributes=ATTRIBUTES) as span:
            span.add_event("first token", {"index": 0})
            span.set_status(StatusCode.OK)


def measure(count: int, rounds: int) -> dict[str, float]:
    """Medians in seconds of processor time a span."""
    bare, traced = TracerProvider(), TracerProvider()
    bare.add_span_processor(SimpleSpanProcessor(Nowhere()))
    traced.add_span_processor(AttemptSpanProcessor())
    works: dict[str, Callable[[], None]] = {
        "bare SDK": lambda: spans(bare.get_tracer("bare"), count),
        "traced": lambda: spans(traced.get_tracer("traced"), count),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    with runner() as channel:
        set_process_scope(Reporter(channel).scope("0" * 32))
        for _ in range(rounds):
            for name, work in works.items():
                began = time.process_time()
                work()
                found[name].append((time.process_time() - began) / count)
        set_process_scope(None)
    return {name: statistics.median(times) for name, times in found.items()}


def import_seconds(rounds: int) -> float:
    """The median processor time of `import relight` in a fresh interpreter."""
    code = "import time; t = time.process_time(); import relight; print(time.process_time() - t)"
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(rounds)]
    return statistics.median(times)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.spans, arguments.rounds)
    imported = import_seconds(arguments.rounds)
    ratio = found["traced"] / found["bare SDK"]
    if arguments.json:
        print(json.dumps(found | {"ratio": ratio, "import relight": imported}))
        return
    for name, seconds in found.items():
        print(f"  {name:10} {seconds * 1e6:7.1f} us a span")
    print(f"  ratio      {ratio:7.2f}      wanted: at most {WANTED_RATIO:.0f}")
    print(f"  import relight {imported * 1e3:.1f} ms   wanted: under {WANTED_IMPORT_MILLISECONDS:.0f} ms")


if __name__ == "__main__":
    main()
