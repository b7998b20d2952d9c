"""`relight status`: the stack, its services, task queues and runs; or one run, once or until it ends."""

from __future__ import annotations

from typing import Annotated

import typer

from relight.cli import output
from relight.cli.full_disks import full_disks
from relight.cli.progress import step_event, summary_lines
from relight.cli.stack_overview import read_overview, show
from relight.cli.store_reader import StoreReader
from relight.cli.train import watch as watch_run
from relight.errors import NotFoundError
from relight.settings import Settings
from relight.temporal.connection import connect_temporal
from relight.types.views import StepView

EPILOG = """\b
Examples:
  relight status
  relight status calculator-1
  relight status --watch calculator-1"""
SHOWN_STEPS = 10


async def status(
    run: Annotated[str | None, typer.Argument(help="A run; without it, the stack.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the run until it ends.")] = False,
) -> None:
    """Show the stack with its task queues and runs, or one run. Ctrl-C ends only the watching."""
    settings = output.settings()
    async with StoreReader.from_settings(settings) as reader:
        if watch:
            await _watch(run or await newest_active(reader), reader, settings)
        elif run:
            await _show_run(run, reader, settings)
        else:
            await _show_stack(settings, reader)


async def newest_active(reader: StoreReader) -> str:
    """The newest run that is running.

    Raises:
        NotFoundError: no run is.
    """
    active = [known.run for known in await reader.runs() if known.status == "running"]
    if not active:
        raise NotFoundError("no run is running; `relight runs` lists those that ended")
    return active[0]


async def _watch(run: str, reader: StoreReader, settings: Settings) -> None:
    await watch_run(run, reader, await connect_temporal(settings), settings)


async def _show_run(run: str, reader: StoreReader, settings: Settings) -> None:
    disks = full_disks(settings.home)
    if not output.wants_json():  # first, as a full disk may be why the store does not answer
        for disk in disks:
            output.say(f"disk      {disk}")
    view = await reader.run(run)
    steps = await reader.steps(run, after=max(0, view.step - SHOWN_STEPS), recorded=True)
    shown = {"steps": steps, "full_disks": disks}
    lists = {name: [one.model_dump(mode="json") for one in some] for name, some in shown.items()}
    if not output.emitted({**view.model_dump(mode="json"), **lists}):
        for line in [*summary_lines(view), *step_lines(steps, view.total_steps)]:
            output.say(line)


def step_lines(steps: list[StepView], total: int) -> list[str]:
    """The newest steps."""
    return ["", *(step_event(step, total).text for step in steps)] if steps else []


async def _show_stack(settings: Settings, reader: StoreReader) -> None:
    found = await read_overview(settings, reader)
    if not output.emitted(found):
        show(found)
    if not found.reachable:
        raise SystemExit(1)
