"""Redaction of spans: megabytes a second of CPU time, and as a ratio to parsing the same bytes.

    python -m benchmarks.redaction [--megabytes 8] [--rounds 5] [--json]

Spans are JSON of about 4 KB: messages of a dialogue with prose and code, tools' results, numbers and ids. Parsing is
`orjson.loads` of the same bytes in the same round, so that the ratio says less about the machine. No round's texts were
seen before; the first round, which builds the automaton's states, is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import orjson

from relight.observability.redaction import Redactor
from tests.support.secret_corpus import ordinary_spans


def measure(megabytes: int, rounds: int) -> list[tuple[float, float, float]]:
    """Megabytes a second of redaction and of parsing, and the share of bytes that one scan called clean, by round."""
    redactor = Redactor()
    found: list[tuple[float, float, float]] = []
    for number in range(rounds + 1):
        spans = ordinary_spans(random.Random(number), megabytes << 20)
        size = sum(map(len, spans)) / 1e6
        redacting, parsing = _seconds(redactor.json, spans), _seconds(orjson.loads, spans)
        clean = sum(len(span) for span in spans if redactor.is_clean(span)) / 1e6
        found.append((size / redacting, size / parsing, clean / size))
    return found[1:]


def _seconds(work: Callable[[bytes], object], spans: list[bytes]) -> float:
    began = time.process_time()
    for span in spans:
        work(span)
    return time.process_time() - began


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=8, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.megabytes, arguments.rounds)
    rate, parsing, clean = (statistics.median(values) for values in zip(*found, strict=True))
    ratio = statistics.median(one / other for one, other, _ in found)
    if arguments.json:
        print(json.dumps({"megabytes_per_second": rate, "orjson": parsing, "ratio": ratio, "clean": clean}))
        return
    print(f"redaction of ordinary spans, one thread (median of {arguments.rounds} rounds)")
    print(f"  redaction      {rate:7.1f} MB/s (wanted: 50)   {clean:.1%} of the bytes clean after one scan")
    print(f"  orjson.loads   {parsing:7.1f} MB/s   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
