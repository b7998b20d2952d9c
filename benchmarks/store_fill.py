"""A store that grows, and what is measured of it at two sizes; for `store_reads` and `store_memory`.

Spans of 1 KB, a hundred to a rollout, all through the service by OTLP.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from random import Random

from benchmarks.store_client import Order
from benchmarks.store_sides import Side, have_done, our_side

SPANS_A_ROLLOUT = 100
CHUNK = 40_000
"""Spans that one client process builds before it sends them."""
CLIENTS = 4
READS = 200
SETTLE_SECONDS = 5.0


@dataclass
class Found:
    """What was measured with so many spans stored."""

    spans: int
    resident_bytes: int
    read_median_ms: float
    read_p99_ms: float


async def grow(side: Side, have: int, want: int, rollouts: list[str]) -> None:
    """Add spans until there are so many; notes the new rollouts."""
    while have < want:
        count = min(CHUNK, want - have)
        order = Order("spans", count, CLIENTS, side.url, str(have), SPANS_A_ROLLOUT, count // SPANS_A_ROLLOUT)
        done = await have_done(order)
        rollouts += done["rollouts"]
        have += count
        print(f"{have} spans stored, {done['rate']:.0f}/s", file=sys.stderr, flush=True)


async def look(side: Side, spans: int, rollouts: list[str]) -> Found:
    """Memory first, then reads of rollouts of all ages."""
    await asyncio.sleep(SETTLE_SECONDS)
    resident = side.resident_bytes()
    chosen = Random(1).sample(rollouts, min(READS, len(rollouts)))
    done = await have_done(Order("reads", READS, 1, side.url, rollout_ids=chosen))
    if done["sizes"] != [SPANS_A_ROLLOUT]:
        raise SystemExit(f"a rollout has not the {SPANS_A_ROLLOUT} spans that were acknowledged: {done['sizes']}")
    return Found(spans, resident, done["median_ms"], done["p99_ms"])


async def measure(small: int, large: int) -> tuple[Found, Found]:
    """The store with few spans, and with many."""
    async with our_side() as side:
        rollouts: list[str] = []
        await grow(side, 0, small, rollouts)
        few = await look(side, small, rollouts)
        await grow(side, small, large, rollouts)
        return few, await look(side, large, rollouts)
