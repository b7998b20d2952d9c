"""Faults of the network that a seed decides, and how each is done to the proxies between processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.chaos.network import BOTH, EDGES, Conditions, Edge, Network, Way

SECONDS = (1.0, 12.0)
"""How long a fault lasts: the longest passes a runner's heartbeat timeout."""
PAUSE_SECONDS = (1.0, 9.0)
SWIZZLED = 4
"""Edges of a swizzle."""


async def _slow(edge: Edge) -> None:
    edge.change(Conditions(latency_seconds=0.05, jitter_seconds=0.1))


async def _narrow(edge: Edge) -> None:
    edge.change(Conditions(bytes_per_second=50_000))


async def _stall(edge: Edge) -> None:
    edge.change(Conditions(stalled=True))


async def _end_slowly(edge: Edge) -> None:
    edge.change(Conditions(close_seconds=3.0))


async def _cut(edge: Edge) -> None:
    edge.cut()


async def _refuse(edge: Edge) -> None:
    await edge.refuse()


async def _half_open(edge: Edge) -> None:
    edge.lose(BOTH)


async def _deafen(edge: Edge) -> None:
    edge.lose(frozenset({Way.UP}))


async def _silence(edge: Edge) -> None:
    edge.lose(frozenset({Way.DOWN}))


async def _swallow(edge: Edge) -> None:
    edge.lose(BOTH, new_too=True)


KINDS: Mapping[str, Callable[[Edge], Awaitable[None]]] = {
    "slow": _slow,
    "narrow": _narrow,
    "stall": _stall,
    "end slowly": _end_slowly,
    "cut off": _cut,
    "refuse": _refuse,
    "half-open": _half_open,
    "deafen": _deafen,
    "silence": _silence,
    "swallow": _swallow,
}
"""What can be done to an edge, by name. The last four leave connections behind that look alive and are dead."""
LASTING = frozenset({"half-open", "deafen", "silence", "swallow"})
SWIZZLE = "swizzle"


@dataclass(frozen=True)
class NetworkFault:
    """What is done to which edges, for how long, and how long nothing is done after it."""

    kind: str
    edges: tuple[str, ...]
    seconds: float
    pause_seconds: float = 0.0
    healed: tuple[str, ...] = ()
    """The edges of a swizzle in the order in which they heal."""

    def __str__(self) -> str:
        return self.kind if self.kind == SWIZZLE else f"{self.kind} {' and '.join(self.edges)}"

    async def inflict(self, network: Network) -> None:
        """Do it, and heal what can be healed."""
        if self.kind == SWIZZLE:
            await self._swizzle(network)
            return
        for name in self.edges:
            await KINDS[self.kind](network.edges[name])
        await asyncio.sleep(self.seconds)
        for name in self.edges:
            await network.edges[name].heal()

    async def _swizzle(self, network: Network) -> None:
        """Cut edges off one by one, then let them heal in another order."""
        pause = self.seconds / (2 * len(self.edges))
        for name in self.edges:
            await network.edges[name].refuse()
            await asyncio.sleep(pause)
        for name in self.healed:
            await network.edges[name].heal()
            await asyncio.sleep(pause)


def network_fault(draw: random.Random) -> NetworkFault:
    """A fault of the network; the same for the same state of `draw`."""
    seconds, pause_seconds = draw.uniform(*SECONDS), draw.uniform(*PAUSE_SECONDS)
    kind = draw.choice((*KINDS, SWIZZLE))
    if kind == SWIZZLE:
        edges = tuple(draw.sample(EDGES, SWIZZLED))
        return NetworkFault(kind, edges, seconds, pause_seconds, tuple(draw.sample(edges, SWIZZLED)))
    return NetworkFault(kind, (draw.choice(EDGES),), seconds, pause_seconds)
