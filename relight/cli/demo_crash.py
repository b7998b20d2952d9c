"""`relight demo --crash` kills each process of the stack once, in the middle of a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relight.cli import stack_processes
from relight.cli.store_reader import StoreReader
from relight.errors import RelightError
from relight.types.views import RunView

KILL_ORDER = ("runner", "orchestrator", "store", "gateway", "gpu-worker")
RETURN_SECONDS = 300.0


def in_the_middle(view: RunView) -> bool:
    """Whether a step has some rollouts that are done and some that are running."""
    counts = view.open_step.rollouts if view.phase == "sampling" and view.open_step else None
    return counts is not None and counts.running > 0 and 0 < counts.done < counts.planned


class Crasher:
    """Kills a process, waits until it is back and the step has ended, then kills the next."""

    poll_seconds = 0.15

    def __init__(self, run: str, home: Path, reader: StoreReader, say: Callable[[str], None]) -> None:
        self.run = run
        self.home = home
        self.survived: list[str] = []
        self._reader = reader
        self._say = say

    async def kill_all(self) -> None:
        """Kill one process after the other; ends when all are back."""
        last_step = 0
        for name in KILL_ORDER:
            step = await self._middle_of_a_step(after=last_step)
            await self._kill(name, step)
            last_step = step

    async def _middle_of_a_step(self, after: int) -> int:
        view = await self._once(
            lambda view: view.open_step is not None and view.open_step.step > after and in_the_middle(view)
        )
        assert view.open_step is not None
        return view.open_step.step

    async def _kill(self, name: str, step: int) -> None:
        began = time.monotonic()
        pid = stack_processes.kill(self.home, name)
        self._say(f"killed {name} (pid {pid}) in the middle of step {step}")
        back = await stack_processes.wait_for_return(self.home, name, pid, RETURN_SECONDS)
        self._say(f"{name} is back as pid {back} after {time.monotonic() - began:.1f} s")
        await self._once(lambda view: view.step >= step)
        self.survived.append(name)
        self._say(f"step {step} was recorded {time.monotonic() - began:.1f} s after {name} was killed")

    async def _once(self, holds: Callable[[RunView], bool]) -> RunView:
        """The run, once this holds of it."""
        while True:
            with suppress(RelightError):  # the store is what was killed, or the run has no row yet
                view = await self._reader.run(self.run)
                if holds(view):
                    return view
            await asyncio.sleep(self.poll_seconds)
