"""Whole rollouts a second, from enqueue to finish: Relight's store against Agent Lightning 0.3's in-memory store.

    python -m benchmarks.store_rollouts [--lives 600] [--rounds 3] [--json]

A life: enqueue, dequeue, four spans posted one by one, finish. 16 clients at once, in a process of their own, speak the
same REST to both stores in turns. Ours commits every step to a Postgres with fsync and synchronous_commit on; the
peer's (`agl store`) keeps all in memory. All share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

from benchmarks.store_client import Order
from benchmarks.store_processes import both_sides, in_turns

CLIENTS = 16


async def measure(lives: int, rounds: int) -> dict[str, list[float]]:
    """Lives a second by side, a figure a round."""
    async with both_sides() as sides:
        return await in_turns(sides, Order("lives", lives, CLIENTS), rounds)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=600, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rates = asyncio.run(measure(arguments.lives, arguments.rounds))
    medians = {side: statistics.median(values) for side, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["relight"], rates["peer"], strict=True))
    if arguments.json:
        print(json.dumps({"lives_per_second": medians, "ratio": ratio, "rounds": rates}))
        return
    print(f"rollout lives a second, 4 spans each, {CLIENTS} clients (median of {arguments.rounds} rounds)")
    print(f"  Agent Lightning 0.3, in memory   {medians['peer']:8.1f}/s")
    print(f"  Relight, durable                 {medians['relight']:8.1f}/s   ratio {ratio:.2f} (wanted: 1.5, aim: 3)")


if __name__ == "__main__":
    main()
