"""A store that grows, beside one that stays small: what `store_reads` and `store_memory` measure.

Spans of 1 KB, a hundred to a rollout, all through the service by OTLP.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.store_client import Order
from benchmarks.store_processes import Side, have_done, our_side

SPANS_A_ROLLOUT = 100
CHUNK = 40_000
"""Spans that one client process builds before it sends them."""
CLIENTS = 4
ROUNDS = 8
READS = 50
"""A round."""
SETTLE_SECONDS = 5.0


@dataclass
class Read:
    """Reading one rollout's spans, with so many stored; medians over the rounds."""

    spans: int
    median_ms: float
    p99_ms: float


async def grow(side: Side, have: int, want: int, rollouts: list[str]) -> None:
    """Add spans up to this number; records the new rollouts."""
    while have < want:
        count = min(CHUNK, want - have)
        order = Order("spans", count, CLIENTS, side.url, str(have), SPANS_A_ROLLOUT, count // SPANS_A_ROLLOUT)
        done = await have_done(order)
        rollouts += done["rollouts"]
        have += count
        print(f"{have} spans stored, {done['rate']:.0f}/s", file=sys.stderr, flush=True)


async def resident_bytes(side: Side) -> int:
    """Memory of the service when it is idle."""
    await asyncio.sleep(SETTLE_SECONDS)
    return side.resident_bytes()


async def measure_memory(small: int, large: int) -> tuple[int, int]:
    """Memory of one service with few spans, and with many."""
    async with our_side() as side:
        await grow(side, 0, small, [])
        few = await resident_bytes(side)
        await grow(side, small, large, [])
        return few, await resident_bytes(side)


async def measure_reads(small: int, large: int) -> tuple[Read, Read]:
    """Reads from a small store and from a large one, in turns, so that other load of the machine affects both."""
    async with our_side() as few, our_side() as many:
        rollouts: tuple[list[str], list[str]] = ([], [])
        await grow(few, 0, small, rollouts[0])
        await grow(many, 0, large, rollouts[1])
        found: tuple[list[Any], list[Any]] = ([], [])
        for number in range(ROUNDS + 1):
            for side, ids, kept in list(zip((few, many), rollouts, found, strict=True))[:: -1 if number % 2 else 1]:
                kept.append(await _read(side, Random(number).choices(ids, k=READS)))
        return _read_of(small, found[0][1:]), _read_of(large, found[1][1:])  # the first round was a warm-up


async def _read(side: Side, rollouts: list[str]) -> Any:
    done = await have_done(Order("reads", READS, 1, side.url, rollout_ids=rollouts))
    if done["sizes"] != [SPANS_A_ROLLOUT]:
        raise SystemExit(f"a rollout has not the {SPANS_A_ROLLOUT} spans that were acknowledged: {done['sizes']}")
    return done


def _read_of(spans: int, rounds: list[Any]) -> Read:
    return Read(spans, *(statistics.median(done[name] for done in rounds) for name in ("median_ms", "p99_ms")))
