"""The ingestion of spans: spans of 1 KB a second by OTLP, Relight against Agent Lightning 0.3's in-memory store.

    python -m benchmarks.store_spans [--spans 40000] [--rounds 3] [--rollouts-a-batch 1] [--json]

Batches of 200 spans over 64 rollouts, 4 clients at once in a process of their own, the same bytes for both stores in
turns. Ours acknowledges what Postgres has committed, with fsync and synchronous_commit on; the peer's (`agl store`)
keeps all in memory. Each round goes to new rollouts. All share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

from benchmarks.store_client import Order
from benchmarks.store_processes import both_sides, in_turns

CLIENTS = 4


async def measure(spans: int, rounds: int, width: int) -> dict[str, list[float]]:
    """Spans a second by side, a figure a round."""
    async with both_sides() as sides:
        return await in_turns(sides, Order("spans", spans, CLIENTS, rollouts_a_batch=width), rounds)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=40_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts-a-batch", type=int, default=1, help="whose spans a batch holds")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rates = asyncio.run(measure(arguments.spans, arguments.rounds, arguments.rollouts_a_batch))
    medians = {side: statistics.median(values) for side, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["relight"], rates["peer"], strict=True))
    if arguments.json:
        print(json.dumps({"spans_per_second": medians, "ratio": ratio, "rounds": rates}))
        return
    print(f"spans of 1 KB a second by OTLP, {CLIENTS} clients (median of {arguments.rounds} rounds)")
    print(f"  Agent Lightning 0.3, in memory   {medians['peer']:8.0f}/s")
    print(f"  Relight, durable                 {medians['relight']:8.0f}/s   ratio {ratio:.2f} (wanted: 1.5, aim: 3)")


if __name__ == "__main__":
    main()
