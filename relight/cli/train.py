"""`relight train`: check a run file, start the run, watch it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn, Protocol
from urllib.parse import quote

import typer
from temporalio.client import Client
from temporalio.service import RPCError

from relight.activities.readiness import why_waiting
from relight.cli import output
from relight.cli.display import make_display
from relight.cli.follow import RunSource, follow
from relight.cli.render import command_line
from relight.cli.run_check import check_run, check_run_name, name_stem, next_name
from relight.cli.shared_options import Detach, Set
from relight.cli.start_run import launch
from relight.cli.store_reader import StoreReader
from relight.errors import RelightError
from relight.settings import Settings
from relight.temporal.connection import connect_temporal
from relight.types.names import GPU_QUEUE, train_id
from relight.types.payloads import CheckInput
from relight.types.run_file import RunFile
from relight.types.views import VersionView

DETACHED_EXIT_CODE = 130
EPILOG = """\b
Examples:
  relight train run.json
  relight train run.json --name lr-high --set algorithm.learning_rate=1e-3
  relight train run.json --detach --json"""


async def train(
    file: Annotated[Path, typer.Argument(help="Run file, JSON; `relight schema` prints its schema.")],
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the file's folder and a number.")] = None,
    detach: Detach = False,
    set_: Set = None,
    check: Annotated[
        bool, typer.Option(help="Check data sets and model on this machine; --no-check leaves that to the cluster.")
    ] = True,
) -> None:
    """Start or resume a run, and watch it. Ctrl-C ends only the watching; the run goes on.

    Exit code 0: the run finished. 1: it failed. 2: the run file is wrong, and nothing was started.
    """
    settings = output.settings()
    if name:
        check_run_name(name)
    run_file = check_run(file, settings.data_root, set_ or [], files=check)
    client = await connect_temporal(settings)
    async with StoreReader.from_settings(settings) as reader:
        run, started = await start(client, reader, settings, run_file, file, name)
        waiting_for = await _why_waiting(client, run, run_file) if detach else None
        _show_started(settings, run, started, detach, waiting_for)
        if not detach:
            await watch(run, reader, client, settings)


async def start(
    client: Client, reader: StoreReader, settings: Settings, file: RunFile, path: Path, name: str | None
) -> tuple[str, bool]:
    """Start the run under its name, or find it under way; True if it was started."""
    run = name or next_name(name_stem(path), [known.run for known in await reader.runs(1000)])
    return run, await launch(client, reader, settings.orchestrator_queue, run, file)


async def watch(run: str, reader: StoreReader, client: Client | None, settings: Settings) -> NoReturn:
    """Show a run until it ends, then exit with a code for its outcome; Ctrl-C ends only the watching."""
    source = RunSource(run, reader, client, settings.orchestrator_queue)
    try:
        with make_display() as display:
            snapshot = await follow(source, display)
    except asyncio.CancelledError:
        output.say(f"detached; run {run} goes on. To watch it again: {command_line('status', '--watch', run)}")
        raise SystemExit(DETACHED_EXIT_CODE) from None
    with suppress(RelightError):  # the run has ended, and its exit code doesn't depend on this
        await show_model(run, reader)
    raise SystemExit(0 if snapshot.outcome and snapshot.outcome.finished else 1)


class VersionReader(Protocol):
    """Knows the versions of a run."""

    async def versions(self, run: str) -> list[VersionView]: ...


async def show_model(run: str, reader: VersionReader) -> None:
    """Where the files of the newest version lie that has any, and how to look at the run again."""
    kept = [one for one in await reader.versions(run) if one.version > 0 and one.export_deleted_at is None]
    if not kept:
        return
    newest = max(kept, key=lambda one: one.version)
    if not output.emitted({"event": "model", "version": newest.version, "path": newest.export_path}):
        output.say(f"model         {newest.export_path} (version {newest.version})")
        if _is_here(newest):
            output.say(f"serve it      {command_line('serve', f'{run}@{newest.version}')}")
        output.say(f"reward curve  {command_line('plot', run)}")


def _is_here(version: VersionView) -> bool:
    return Path(version.export_path).is_dir()


async def _why_waiting(client: Client, run: str, file: RunFile) -> str | None:
    """Which service has to be started before the run can go on. With `--detach` the user sees no later message."""
    queue = file.runner_queue
    needed = CheckInput(run=run, agent=file.agent, grader=file.grader, runner_queue=queue, gpu_queue=GPU_QUEUE)
    try:
        return await why_waiting(client, needed)
    except RPCError as error:
        return f"can't ask the Temporal server which workers serve the run: {error.message}"


def _show_started(settings: Settings, run: str, started: bool, detach: bool, waiting_for: str | None) -> None:
    page = web_ui_page(settings, run)
    event = "started" if started else "attached"
    if output.emitted({"event": event, "run": run, "web_ui": page, "waiting_for": waiting_for}):
        return
    output.say(f"run {run} {'started' if started else 'is under way'}")
    if page:
        output.say(f"  web UI: {page}")
    if waiting_for:
        output.say(f"  waiting: {waiting_for}")
    if detach:
        output.say(f"  watch it with: {command_line('status', '--watch', run)}")


def web_ui_page(settings: Settings, run: str) -> str | None:
    """The run's page in the Temporal Web UI, if its address is known."""
    if not settings.temporal_ui_url:
        return None
    base = settings.temporal_ui_url.rstrip("/")
    return f"{base}/namespaces/{settings.temporal_namespace}/workflows/{quote(train_id(run), safe='')}"
