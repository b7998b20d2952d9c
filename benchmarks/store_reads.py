"""The speed of reads from a large store: one rollout's 100 spans of 1 KB among 10,000, and among 1,000,000.

    python -m benchmarks.store_reads [--spans 1000000] [--json]

Two stores, each on a Postgres with fsync and synchronous_commit on, filled through the service by OTLP; then a client
in a process of its own reads rollouts of all ages one after the other, from both stores in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from benchmarks.store_growth import measure_reads


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    few, many = asyncio.run(measure_reads(10_000, arguments.spans))
    ratio = many.median_ms / few.median_ms
    if arguments.json:
        print(json.dumps({"few": asdict(few), "many": asdict(many), "ratio": ratio}))
        return
    print("reading one rollout's spans")
    for found in (few, many):
        print(f"  among {found.spans:9,}   {found.median_ms:6.1f} ms median   {found.p99_ms:6.1f} ms p99")
    print(f"  ratio {ratio:.2f} (wanted: under 20 ms, and 2 at most)")


if __name__ == "__main__":
    main()
