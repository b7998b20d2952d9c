"""`relight demo`: boot everything on this machine, train the calculator agent, show what came of it.

`make demo` runs this after it has set the machine up. Without `--keep` nothing is left running.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from temporalio.client import Client

from relight.cli import output, stack_watch
from relight.cli.crash import Crasher
from relight.cli.demo_stack import DemoStack
from relight.cli.follow import RunSource, follow
from relight.cli.launch import check_existing, launch
from relight.cli.plot import plot_run
from relight.cli.progress import Look, held_out_summary
from relight.cli.reader import StoreReader
from relight.cli.render import command_line
from relight.cli.run_check import check_run, name_stem, next_name
from relight.cli.screens import Screen, make_screen
from relight.cli.train import web_ui_page
from relight.connections import connect_temporal
from relight.errors import ConfigError
from relight.settings import Settings
from relight.starting import is_under_way
from relight.types.run_file import RunFile
from relight.types.views import RunView

RUN_FILE = Path("examples/calculator/run.json")
AGENT = "examples/calculator/agent.py:calculator"
TRAINING_BUDGET_SECONDS = 300
EPILOG = """\b
Examples:
  relight demo
  relight demo --keep
  relight demo --crash"""


async def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running.")] = False,
    crash: Annotated[bool, typer.Option("--crash", help="Kill each process once, in the middle of a step.")] = False,
    file: Annotated[Path, typer.Option(help="Run file.")] = RUN_FILE,
    agent: Annotated[str, typer.Option(help="Agent that the runner serves.")] = AGENT,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file, dotted.")
    ] = None,
) -> None:
    """Boot the stack, train the calculator agent, plot its reward, and stop the stack. Ctrl-C stops it, too.

    An unfinished run goes on; after a finished one a new one starts.
    """
    began = time.monotonic()
    settings = output.settings()
    checked = check_run(file, settings.data_root, set_ or [])
    async with AsyncExitStack() as resources:
        stack = DemoStack(settings.home.absolute(), agent, keep=keep)
        settings = await stack.boot(resources)
        reader = await resources.enter_async_context(StoreReader.from_settings(settings))
        client = await connect_temporal(settings)
        run = await begin(client, reader, settings, checked.file, file)
        look = await watch(run, settings, stack.home, reader, client, crash=crash)
        stack.leave_running()
        conclude(look, settings, stack, time.monotonic() - began)
    output.say(last_line(look))
    if not (look.outcome and look.outcome.finished):
        raise SystemExit(1)


async def begin(client: Client, reader: StoreReader, settings: Settings, file: RunFile, path: Path) -> str:
    """Start a run, or find the one that goes on."""
    run, under_way = await choose_run(reader, client, file, path)
    if not under_way:
        await launch(client, reader, settings.orchestrator_queue, run, file)
    page = web_ui_page(settings, run)
    output.say(f"run {run} {'goes on' if under_way else 'starts'}{f'; {page}' if page else ''}")
    return run


async def choose_run(reader: StoreReader, client: Client, file: RunFile, path: Path) -> tuple[str, bool]:
    """The unfinished run of this example, or a new name; True where Temporal drives it already."""
    stem = name_stem(path)
    known = [run for run in await reader.runs(1000) if run.run.rpartition("-")[0] == stem]
    for run in known:
        if await is_under_way(client, run.run):
            return run.run, True  # it will hold the GPU host, whatever its file says
    if known and known[0].status in ("running", "failed", "interrupted"):
        try:
            await check_existing(reader, known[0].run, file)
        except ConfigError as error:
            output.say(error.message)
        else:
            return known[0].run, False
    return next_name(stem, [run.run for run in known]), False


async def watch(run: str, settings: Settings, home: Path, reader: StoreReader, client: Client, *, crash: bool) -> Look:
    """Show the run until it ends, and what dies meanwhile; with `crash`, see to it that something does."""
    with make_screen() as screen:
        source = Announced(RunSource(run, reader, client, settings.orchestrator_queue), home, screen)
        crasher = Crasher(run, home, reader, screen.note)
        chore = asyncio.create_task(crasher.kill_all() if crash else stack_watch.report_changes(home, screen.note))
        try:
            look = await follow(source, screen)
        finally:
            chore.cancel()
            (trouble,) = await asyncio.gather(chore, return_exceptions=True)
        if crash:
            screen.note(f"killed, back, and no step lost: {', '.join(crasher.survived) or 'nothing'}")
        if isinstance(trouble, Exception):
            raise trouble
    return look


class Announced:
    """A run whose watchers are told once, when its engines are up, that any process may be killed."""

    def __init__(self, source: RunSource, home: Path, screen: Screen) -> None:
        self._source = source
        self._home = home
        self._screen = screen
        self._said = False

    async def look(self) -> Look:
        look = await self._source.look()
        if not self._said and look.view and look.view.engines and not look.outcome:
            self._said = True
            engines = [(f"engine {engine.engine_id}", engine.pid) for engine in look.view.engines if engine.pid]
            pids = stack_watch.pids_text(self._home, engines)
            self._screen.note(f"kill -9 any of these whenever you like, the run goes on: {pids}")
        return look


def conclude(look: Look, settings: Settings, stack: DemoStack, total_seconds: float) -> None:
    """Draw the curve and say where everything is."""
    if look.view is None:
        output.say(f"logs are in {stack.home / 'logs'}")
        return
    svg = plot_run(look.view, stack.home / "runs" / look.view.run / "reward.svg")
    lines = conclusion_lines(look.view, settings, stack.home, svg, stack.kept)
    for line in [*lines, time_line(look, total_seconds)]:
        output.say(line)
    if output.wants_json():
        held_out = {one.version: one.reward for one in look.view.evaluations}
        status = look.outcome.status if look.outcome else None
        output.emit({"event": "demo", "run": look.view.run, "status": status, "held_out": held_out, "plot": str(svg)})


def conclusion_lines(view: RunView, settings: Settings, home: Path, svg: Path, kept: bool) -> list[str]:
    """Where everything is."""
    again = command_line("status", "--watch", view.run)
    back = f"{command_line('up', '--detach')} && {again}"
    return [
        "",
        f"reward curve     {svg}",
        f"run              {view.run}, in {home / 'runs' / view.run}; logs in {home / 'logs'}",
        f"Temporal Web UI  {web_ui_page(settings, view.run) or settings.temporal_address}",
        f"store            {settings.store_url}",
        f"look again       {again if kept else back}",
        *([f"stop the stack   {command_line('down')}"] if kept else []),
    ]


def time_line(look: Look, total_seconds: float) -> str:
    """How long everything took, and the training itself: its steps and evaluations."""
    if look.view is None or look.training_seconds is None:
        return f"time             {total_seconds:.0f} s in all"
    evaluations = sum(one.seconds or 0.0 for one in look.view.evaluations)
    training = look.training_seconds + evaluations
    return f"time             {total_seconds:.0f} s in all; training {training:.0f} s of {TRAINING_BUDGET_SECONDS} s"


def last_line(look: Look) -> str:
    """What it was all about."""
    if look.view is None or not (look.outcome and look.outcome.finished):
        return f"the run is {look.outcome.status if look.outcome else 'unfinished'}"
    return held_out_summary(look.view.evaluations) or "held-out reward: not measured"
