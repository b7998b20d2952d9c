"""`relight demo --crash`: kills each process of the stack once, in the middle of a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from relight.cli import stack_watch
from relight.cli.reader import StoreReader
from relight.errors import RelightError
from relight.types.views import RunView

VICTIMS = ("runner", "orchestrator", "store", "gateway", "gpu-worker")
POLL_SECONDS = 0.15
RETURN_SECONDS = 300.0


def in_the_middle(view: RunView) -> bool:
    """Whether a step has rollouts under way, some done and some not."""
    counts = view.open_step.rollouts if view.phase == "sampling" and view.open_step else None
    if counts is None:
        return False
    done = counts.succeeded + counts.failed + counts.cancelled
    return counts.running > 0 and 0 < done < counts.planned


class Crasher:
    """Kills, waits until the part is back and a step has ended, and kills the next."""

    def __init__(self, run: str, home: Path, reader: StoreReader, say: Callable[[str], None]) -> None:
        self.run = run
        self.home = home
        self.survived: list[str] = []
        self._reader = reader
        self._say = say

    async def kill_all(self) -> None:
        """One after the other; ends when all have been killed and are back."""
        last_step = 0
        for name in VICTIMS:
            step = await self._middle_of_a_step(after=last_step)
            await self._kill(name, step)
            last_step = step

    async def _middle_of_a_step(self, after: int) -> int:
        while True:
            view = await self._view()
            if view and view.open_step and view.open_step.step > after and in_the_middle(view):
                return view.open_step.step
            await asyncio.sleep(POLL_SECONDS)

    async def _kill(self, name: str, step: int) -> None:
        began = time.monotonic()
        pid = stack_watch.kill(self.home, name)
        self._say(f"killed {name} (pid {pid}) in the middle of step {step}")
        back = await stack_watch.wait_for_return(self.home, name, pid, RETURN_SECONDS)
        self._say(f"{name} is back as pid {back} after {time.monotonic() - began:.1f} s")
        await self._until_recorded(step)
        self.survived.append(name)
        self._say(f"step {step} was recorded {time.monotonic() - began:.1f} s after {name} was killed")

    async def _until_recorded(self, step: int) -> None:
        while True:
            view = await self._view()
            if view and view.step >= step:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _view(self) -> RunView | None:
        try:
            return await self._reader.run(self.run)
        except RelightError:  # the store is what was killed, or the run has no row yet
            return None
