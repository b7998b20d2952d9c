"""`relight demo`: start the stack on this machine, train the calculator agent, show the result.

`make demo` runs this after it has installed what is needed. Without `--keep` nothing is left running.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from temporalio.client import Client

from relight.cli import output, stack_processes
from relight.cli.demo_crash import Crasher
from relight.cli.demo_stack import DemoStack
from relight.cli.display import Display, make_display
from relight.cli.follow import RunSource, follow
from relight.cli.plot import plot_run
from relight.cli.progress import RunSnapshot, held_out_summary
from relight.cli.render import command_line
from relight.cli.run_check import check_run, name_stem, next_name
from relight.cli.shared_options import Set
from relight.cli.start_run import check_existing, launch
from relight.cli.store_reader import StoreReader
from relight.cli.train import web_ui_page
from relight.errors import ConfigError
from relight.operators.run_workflows import is_driven
from relight.retrying import in_background
from relight.settings import Settings
from relight.temporal.connection import connect_temporal
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
    set_: Set = None,
) -> None:
    """Start the stack, train the calculator agent, plot its reward, and stop the stack. Ctrl-C stops it, too.

    An unfinished run of the demo is resumed; otherwise a new run starts.
    """
    began = time.monotonic()
    settings = output.settings()
    run_file = check_run(file, settings.data_root, set_ or [])
    async with AsyncExitStack() as resources:
        stack = DemoStack(settings.home.absolute(), agent, keep=keep)
        settings = await stack.boot(resources)
        reader = await resources.enter_async_context(StoreReader.from_settings(settings))
        client = await connect_temporal(settings)
        run = await begin(client, reader, settings, run_file, file)
        snapshot = await watch(run, settings, stack.home, reader, client, crash=crash)
        stack.leave_running()
        show_results(snapshot, settings, stack, time.monotonic() - began)
    output.say(last_line(snapshot))
    if not (snapshot.outcome and snapshot.outcome.finished):
        raise SystemExit(1)


async def begin(client: Client, reader: StoreReader, settings: Settings, file: RunFile, path: Path) -> str:
    """Start a new run, or resume the unfinished one."""
    run, under_way = await choose_run(reader, client, file, path)
    if not under_way:
        await launch(client, reader, settings.orchestrator_queue, run, file)
    page = web_ui_page(settings, run)
    output.say(f"run {run} {'is resumed' if under_way else 'starts'}{f'; {page}' if page else ''}")
    return run


async def choose_run(reader: StoreReader, client: Client, file: RunFile, path: Path) -> tuple[str, bool]:
    """The unfinished run of this example, or a new name; True where Temporal drives it already."""
    stem = name_stem(path)
    known = [run for run in await reader.runs(1000) if run.run.rpartition("-")[0] == stem]
    for run in known:
        if await is_driven(client, run.run):
            return run.run, True  # even if its file differs: it holds the GPU host
    if known and known[0].status in ("running", "failed", "interrupted"):
        try:
            await check_existing(reader, known[0].run, file)
        except ConfigError as error:
            output.say(error.message)
        else:
            return known[0].run, False
    return next_name(stem, [run.run for run in known]), False


async def watch(
    run: str, settings: Settings, home: Path, reader: StoreReader, client: Client, *, crash: bool
) -> RunSnapshot:
    """Show the run until it ends, and which processes of the stack die meanwhile; with `crash`, kill some."""
    with make_display() as display:
        source = KillHint(RunSource(run, reader, client, settings.orchestrator_queue), home, display)
        crasher = Crasher(run, home, reader, display.note)
        work = crasher.kill_all() if crash else stack_processes.report_changes(home, display.note)
        async with in_background(work) as (background,):
            snapshot = await follow(source, display)
        if crash:
            names = ", ".join(crasher.survived) or "none"
            display.note(f"processes that were killed and started again, without the loss of a step: {names}")
        if not background.cancelled():
            background.result()
    return snapshot


class KillHint:
    """A source of snapshots that shows once, when the engines are up, which processes the user may kill."""

    def __init__(self, source: RunSource, home: Path, display: Display) -> None:
        self._source = source
        self._home = home
        self._display = display
        self._shown = False

    async def snapshot(self) -> RunSnapshot:
        snapshot = await self._source.snapshot()
        if not self._shown and snapshot.view and snapshot.view.engines and not snapshot.outcome:
            self._shown = True
            engines = [(f"engine {engine.engine_id}", engine.pid) for engine in snapshot.view.engines if engine.pid]
            pids = stack_processes.pids_text(self._home, engines)
            self._display.note(f"kill -9 any of these at any time, the run goes on: {pids}")
        return snapshot


def show_results(snapshot: RunSnapshot, settings: Settings, stack: DemoStack, total_seconds: float) -> None:
    """Plot the reward curve and print where to find everything."""
    if snapshot.view is None:
        output.say(f"logs are in {stack.home / 'logs'}")
        return
    view = snapshot.view
    svg = plot_run(view, stack.home / "runs" / view.run / "reward.svg")
    for line in [*result_lines(view, settings, stack.home, svg, stack.kept), time_line(snapshot, total_seconds)]:
        output.say(line)
    if output.wants_json():
        held_out = {one.version: one.score for one in view.evaluations}
        status = snapshot.outcome.status if snapshot.outcome else None
        output.emit({"event": "demo", "run": view.run, "status": status, "held_out": held_out, "plot": str(svg)})


def result_lines(view: RunView, settings: Settings, home: Path, svg: Path, kept: bool) -> list[str]:
    """Where to find the results, and the commands to show them again."""
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


def time_line(snapshot: RunSnapshot, total_seconds: float) -> str:
    """How long everything took, and the training itself: its steps and evaluations."""
    if snapshot.view is None or snapshot.training_seconds is None:
        return f"time             {total_seconds:.0f} s in all"
    evaluations = sum(one.seconds or 0.0 for one in snapshot.view.evaluations)
    training = snapshot.training_seconds + evaluations
    return f"time             {total_seconds:.0f} s in all; training {training:.0f} s of {TRAINING_BUDGET_SECONDS} s"


def last_line(snapshot: RunSnapshot) -> str:
    """The held-out scores before and after training, or how the run ended."""
    if snapshot.view is None or not (snapshot.outcome and snapshot.outcome.finished):
        return snapshot.outcome.text if snapshot.outcome else "the run has not ended"
    return held_out_summary(snapshot.view.evaluations) or "held-out score: not measured"
