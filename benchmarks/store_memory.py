"""The memory of a large store: resident memory of the service after 10,000 spans, and after 1,000,000.

    python -m benchmarks.store_memory [--spans 1000000] [--json]

All spans (1 KB each) go through the service by OTLP, in batches of 100, 4 clients at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from benchmarks.store_growth import measure_memory

FEW = 10_000


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    few, many = asyncio.run(measure_memory(FEW, arguments.spans))
    ratio = many / few
    if arguments.json:
        print(json.dumps({"few_bytes": few, "many_bytes": many, "ratio": ratio}))
        return
    print("resident memory of the store service")
    for spans, size in ((FEW, few), (arguments.spans, many)):
        print(f"  after {spans:9,} spans   {size / 2**20:6.1f} MiB")
    print(f"  ratio {ratio:.2f} (wanted: 1.5 at most)")


if __name__ == "__main__":
    main()
