"""Faults that a seed decides, and how each is done to a stack.

A kind says how likely it is, what it draws and how it is done: `KINDS`. Kinds that this machine can't do (a full disk
needs a mount, a jump of a clock a compiler) are left out before anything is drawn, so a seed means the same faults on
machines that can do the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg

from relight.errors import StackError
from tests.chaos.clocks import HOUR
from tests.chaos.disks import DISKS
from tests.chaos.network import EDGES, Conditions, Network
from tests.chaos.network_faults import SWIZZLED, NetworkFault
from tests.chaos.stack import ChaosStack

RELIGHT = ("runner", "gpu-worker", "orchestrator", "gateway", "store")
"""Our own processes, in the order in which a deployment restarts them."""
PROCESSES = (*RELIGHT, "temporal", "postgres")
CLOCKED = (*RELIGHT, "postgres")
AWAY_SECONDS: Mapping[str, float] = {"temporal": 120.0, "postgres": 60.0}
BRIEF = 0.15
"""Part of those that the short form waits for."""
PAUSE_SECONDS = (1.0, 9.0)
"""Between two faults: shorter than most recoveries, so that some hit one that is under way."""
RETURN_SECONDS = 120.0


@dataclass(frozen=True)
class Fault:
    """What is done, to whom, and how long nothing is done after it."""

    kind: str
    targets: tuple[str, ...]
    """Processes; for `fill` a disk, for the network's an edge."""
    amount: float
    """Seconds that it lasts; for `jump` those by which the clock is off."""
    pause_seconds: float

    @property
    def whom(self) -> str:
        """The targets in words."""
        return " and ".join(self.targets) if len(self.targets) < len(RELIGHT) else "all"

    def __str__(self) -> str:
        return f"{self.kind} {self.whom}"


Draw = Callable[[random.Random], tuple[tuple[str, ...], float]]
Do = Callable[[ChaosStack, Fault], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    weight: float
    draw: Draw
    """Targets and amount."""
    do: Do
    """Do it; returns once it is over, if it is one that passes."""
    possible: Callable[[ChaosStack], bool] = field(default=lambda chaos: True)


def _one_of(names: Collection[str], seconds: tuple[float, float] = (0.0, 0.0)) -> Draw:
    return lambda draw: ((draw.choice(sorted(names)),), draw.uniform(*seconds))


def _one_or_two(draw: random.Random) -> tuple[tuple[str, ...], float]:
    return tuple(draw.sample(PROCESSES, 2 if draw.random() < 0.2 else 1)), 0.0


def _away(draw: random.Random) -> tuple[tuple[str, ...], float]:
    name = draw.choice(sorted(AWAY_SECONDS))
    return (name,), AWAY_SECONDS[name]


def _jump(draw: random.Random) -> tuple[tuple[str, ...], float]:
    targets = CLOCKED if draw.random() < 0.3 else (draw.choice(CLOCKED),)
    return targets, draw.choice((-HOUR, HOUR, 0.0))


async def _signal(chaos: ChaosStack, fault: Fault) -> None:
    """A process that is away already is left in peace."""
    for name in fault.targets:
        with suppress(StackError, ProcessLookupError):
            chaos.stack.kill(name, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)


async def _freeze(chaos: ChaosStack, fault: Fault) -> None:
    try:
        pid = chaos.stack.kill(fault.targets[0], signal.SIGSTOP)
    except (StackError, ProcessLookupError):
        return
    await asyncio.sleep(fault.amount)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def _cut_connections(chaos: ChaosStack, fault: Fault) -> None:
    with suppress(asyncpg.PostgresError, OSError, TimeoutError):
        connection = await asyncpg.connect(chaos.stack.settings.postgres_url, timeout=5)
        with suppress(asyncpg.PostgresError):
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend'"
            )


async def _hold_down(chaos: ChaosStack, fault: Fault) -> None:
    """Killed, and not started again for so long."""
    async with chaos.held_down(fault.targets[0]):
        await asyncio.sleep(fault.amount)


async def _fill(chaos: ChaosStack, fault: Fault) -> None:
    disk = chaos.disks[fault.targets[0]]
    await asyncio.to_thread(disk.fill)
    try:
        await asyncio.sleep(fault.amount)
    finally:
        await asyncio.to_thread(disk.free)


async def _set_clocks(chaos: ChaosStack, fault: Fault) -> None:
    for name in fault.targets:
        chaos.clocks[name].jump(fault.amount)


async def _deploy(chaos: ChaosStack, fault: Fault) -> None:
    """Each of our processes is asked to end and started again, one after the other."""
    for name in fault.targets:
        keeper = chaos.stack.process(name)
        with suppress(StackError, ProcessLookupError):
            pid = chaos.stack.kill(name, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETURN_SECONDS):
                    while keeper.pid == pid:  # noqa: ASYNC110  # its end; `ready` may be set still
                        await asyncio.sleep(0.05)
                    await keeper.ready.wait()


def _edge(seconds: tuple[float, float]) -> Draw:
    return _one_of([edge for edge in EDGES if not edge.startswith("runner-2")], seconds)


async def _slow_down(chaos: ChaosStack, fault: Fault) -> None:
    edge = _network(chaos).edges[fault.targets[0]]
    edge.change(Conditions(latency_seconds=0.2, jitter_seconds=0.3, bytes_per_second=64 * 1024))
    await asyncio.sleep(fault.amount)
    await edge.heal()


async def _part(chaos: ChaosStack, fault: Fault) -> None:
    """Both ways, connections that are open and those that are wanted."""
    edge = _network(chaos).edges[fault.targets[0]]
    await edge.refuse()
    await asyncio.sleep(fault.amount)
    await edge.heal()


async def _lose_packets(chaos: ChaosStack, fault: Fault) -> None:
    """Open connections are dead, and neither end is told."""
    _network(chaos).edges[fault.targets[0]].lose()


def _edges(draw: random.Random) -> tuple[tuple[str, ...], float]:
    return tuple(draw.sample(EDGES, SWIZZLED)), draw.uniform(4.0, 12.0)


async def _break_connections(chaos: ChaosStack, fault: Fault) -> None:
    """What `network_faults` knows; the edges of a swizzle heal in the order of their names."""
    broken = NetworkFault(fault.kind, fault.targets, fault.amount, healed=tuple(sorted(fault.targets)))
    await broken.inflict(_network(chaos))


def _network(chaos: ChaosStack) -> Network:
    assert chaos.network is not None, "drawn only where there is one"
    return chaos.network


def _has_network(chaos: ChaosStack) -> bool:
    return chaos.network is not None


KINDS: dict[str, Kind] = {
    "kill": Kind(5, _one_or_two, _signal),
    "terminate": Kind(2, _one_of(PROCESSES), _signal),
    "freeze": Kind(2, _one_of(PROCESSES, (1.0, 14.0)), _freeze),  # the longest passes a runner's heartbeat timeout
    "cut": Kind(1, _one_of(("postgres",)), _cut_connections),
    "away": Kind(1, _away, _hold_down),
    "fill": Kind(1.5, _one_of(DISKS, (3.0, 12.0)), _fill, lambda chaos: bool(chaos.disks)),
    "jump": Kind(1.5, _jump, _set_clocks, lambda chaos: bool(chaos.clocks)),
    "deploy": Kind(1, lambda draw: (RELIGHT, 0.0), _deploy),
    "slow": Kind(1, _edge((3.0, 12.0)), _slow_down, _has_network),
    "part": Kind(1.5, _edge((1.0, 15.0)), _part, _has_network),
    "half-open": Kind(1, _edge((0.0, 0.0)), _lose_packets, _has_network),
    "cut off": Kind(1, _edge((0.0, 0.0)), _break_connections, _has_network),
    "stall": Kind(0.5, _edge((1.0, 12.0)), _break_connections, _has_network),
    "silence": Kind(0.5, _edge((0.0, 0.0)), _break_connections, _has_network),
    "swallow": Kind(0.5, _edge((1.0, 8.0)), _break_connections, _has_network),
    "swizzle": Kind(0.5, _edges, _break_connections, _has_network),
}


def possible(chaos: ChaosStack) -> list[str]:
    """The kinds that can be done to this stack."""
    return [name for name, kind in KINDS.items() if kind.possible(chaos)]


def seeded(seed: int, kinds: Collection[str] = tuple(KINDS), *, brief: bool = False) -> Iterator[Fault]:
    """Faults without end, the same for the same seed: first one of each kind, in a drawn order, then as they come."""
    draw = random.Random(seed)
    names = [name for name in KINDS if name in kinds]
    first = draw.sample(names, len(names))
    while True:
        name = first.pop() if first else draw.choices(names, [KINDS[name].weight for name in names])[0]
        targets, amount = KINDS[name].draw(draw)
        pause_seconds = draw.uniform(*PAUSE_SECONDS)
        yield Fault(name, targets, amount * (BRIEF if brief and name == "away" else 1), pause_seconds)


async def inflict(chaos: ChaosStack, fault: Fault) -> None:
    """Do it."""
    await KINDS[fault.kind].do(chaos, fault)
