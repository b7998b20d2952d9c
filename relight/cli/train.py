"""`relight train`: check a run file, start the run, watch it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import quote

import typer
from temporalio.client import Client

from relight.cli import output
from relight.cli.follow import RunSource, follow
from relight.cli.launch import launch
from relight.cli.reader import StoreReader
from relight.cli.render import command_line
from relight.cli.run_check import check_run, check_run_name, name_stem, next_name
from relight.cli.screens import make_screen
from relight.connections import connect_temporal
from relight.settings import Settings
from relight.types.names import train_id
from relight.types.run_file import RunFile

DETACHED_EXIT_CODE = 130
EPILOG = """\b
Examples:
  relight train run.json
  relight train run.json --name lr-high --set algorithm.learning_rate=1e-3
  relight train run.json --detach --json"""


async def train(
    file: Annotated[Path, typer.Argument(help="Run file, JSON; `relight schema` prints its schema.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the run. Default: the file's folder and a number.", show_default=False)
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and return.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file, dotted.")
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Look at data sets and model from here; --no-check leaves that to the cluster.")
    ] = True,
) -> None:
    """Start a run, or go on with it, and watch it. Ctrl-C detaches; the run goes on.

    Exit code 0: the run finished. 1: it failed. 2: the run file can't work, and nothing was started.
    """
    settings = output.settings()
    if name:
        check_run_name(name)
    checked = check_run(file, settings.data_root, set_ or [], files=check)
    client = await connect_temporal(settings)
    async with StoreReader.from_settings(settings) as reader:
        run, started = await start(client, reader, settings, checked.file, file, name)
        _announce(settings, run, started, detach)
        if not detach:
            await watch(run, reader, client, settings)


async def start(
    client: Client, reader: StoreReader, settings: Settings, file: RunFile, path: Path, name: str | None
) -> tuple[str, bool]:
    """Start the run under its name, or find it under way; True where it was started."""
    run = name or next_name(name_stem(path), [known.run for known in await reader.runs(1000)])
    return run, await launch(client, reader, settings.orchestrator_queue, run, file)


async def watch(run: str, reader: StoreReader, client: Client | None, settings: Settings) -> NoReturn:
    """Show a run until it ends, then end this process by its outcome; Ctrl-C only detaches."""
    source = RunSource(run, reader, client, settings.orchestrator_queue)
    try:
        with make_screen() as screen:
            look = await follow(source, screen)
    except asyncio.CancelledError:
        output.say(f"detached; run {run} goes on. Come back with: {command_line('status', '--watch', run)}")
        raise SystemExit(DETACHED_EXIT_CODE) from None
    raise SystemExit(0 if look.outcome and look.outcome.finished else 1)


def _announce(settings: Settings, run: str, started: bool, detach: bool) -> None:
    page = web_ui_page(settings, run)
    if output.wants_json():
        output.emit({"event": "started" if started else "attached", "run": run, "web_ui": page})
        return
    output.say(f"run {run} {'started' if started else 'is under way'}")
    if page:
        output.say(f"  web UI: {page}")
    if detach:
        output.say(f"  watch it with: {command_line('status', '--watch', run)}")


def web_ui_page(settings: Settings, run: str) -> str | None:
    """The run's page in the Temporal Web UI, where its address is known."""
    if not settings.temporal_ui_url:
        return None
    base = settings.temporal_ui_url.rstrip("/")
    return f"{base}/namespaces/{settings.temporal_namespace}/workflows/{quote(train_id(run), safe='')}"
