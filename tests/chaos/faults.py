"""Faults that a seed decides, and how each is done to a stack."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import asyncpg

from relight.errors import StackError
from relight.worker.stack import EmbeddedStack

PROCESSES = ("store", "gateway", "runner", "orchestrator", "gpu-worker", "temporal", "postgres")
FROZEN_SECONDS = (1.0, 14.0)
"""The longest passes a runner's heartbeat timeout."""
PAUSE_SECONDS = (1.0, 9.0)
"""Between two faults: shorter than most recoveries, so that some hit one that is under way."""


@dataclass(frozen=True)
class Fault:
    """What is done, to whom, and how long nothing is done after it."""

    kind: str
    """kill, terminate, freeze, or cut: Postgres' connections."""
    processes: tuple[str, ...]
    seconds: float
    """Of a freeze."""
    pause_seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {' and '.join(self.processes)}"


def seeded(seed: int) -> Iterator[Fault]:
    """Faults without end, the same for the same seed."""
    draw = random.Random(seed)
    while True:
        kind = draw.choices(("kill", "terminate", "freeze", "cut"), (5, 2, 2, 1))[0]
        count = 2 if kind == "kill" and draw.random() < 0.2 else 1
        processes = ("postgres",) if kind == "cut" else tuple(draw.sample(PROCESSES, count))
        yield Fault(kind, processes, draw.uniform(*FROZEN_SECONDS), draw.uniform(*PAUSE_SECONDS))


async def inflict(stack: EmbeddedStack, fault: Fault) -> None:
    """Do it; a process that is away already is left in peace."""
    if fault.kind == "cut":
        await _cut_connections(stack)
    elif fault.kind == "freeze":
        await _freeze(stack, fault.processes[0], fault.seconds)
    else:
        for name in fault.processes:
            with suppress(StackError, ProcessLookupError):
                stack.kill(name, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)


async def _cut_connections(stack: EmbeddedStack) -> None:
    with suppress(asyncpg.PostgresError, OSError):
        connection = await asyncpg.connect(stack.settings.postgres_url, timeout=5)
        with suppress(asyncpg.PostgresError):
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend'"
            )


async def _freeze(stack: EmbeddedStack, name: str, seconds: float) -> None:
    try:
        pid = stack.kill(name, signal.SIGSTOP)
    except (StackError, ProcessLookupError):
        return
    await asyncio.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
