"""The stack of a demo: one that is running already, one in the background (`--keep`), or one in this process."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from relight.cli import output
from relight.cli.up import EventPrinter
from relight.errors import StackError
from relight.settings import Settings, load_settings
from relight.stack import stack_file
from relight.stack.embedded import EmbeddedStack
from relight.stack.supervisor import StackEvent as StackEvent


class DemoStack:
    """Uses the stack that is running, or starts one, which ends with the demo unless it is to be kept."""

    def __init__(self, home: Path, agent: str, *, keep: bool) -> None:
        self.home = home
        self.kept = keep
        self._agent = agent
        self._stop_at_end = True

    def leave_running(self) -> None:
        """Leave a kept stack running; called when the demo has succeeded."""
        self._stop_at_end = not self.kept

    async def boot(self, resources: AsyncExitStack) -> Settings:
        """Return the settings of the stack when all its processes are ready."""
        if stack_file.running_pid(self.home):
            output.say(f"the stack in {self.home} is running already; the demo uses it and leaves it running")
            self.kept = True
            return load_settings(**output.current.flags)
        if self.kept:
            await self._boot_in_background(resources)
            return load_settings(**output.current.flags)
        return await self._boot_here(resources)

    async def _boot_here(self, resources: AsyncExitStack) -> Settings:
        show = EventPrinter(None)
        booting = True

        def on_event(event: StackEvent) -> None:
            if booting:  # later, the deaths of processes are shown with the run's progress
                show(event)

        stack = EmbeddedStack(self.home, agents=[self._agent], flags=output.current.flags, on_event=on_event)
        await resources.enter_async_context(stack)
        await stack.wait_ready()
        booting = False
        return stack.settings

    async def _boot_in_background(self, resources: AsyncExitStack) -> None:
        resources.push_async_callback(self._stop)
        flags = [word for name, value in output.current.flags.items() for word in (_flag(name), str(value))]
        command = [sys.executable, "-m", "relight.cli", "up", "--detach", "--agent", self._agent, *flags]
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait():
            raise StackError("the stack can't be started; the reason is printed above")

    async def _stop(self) -> None:
        if self._stop_at_end:
            await asyncio.to_thread(stack_file.end, self.home)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
