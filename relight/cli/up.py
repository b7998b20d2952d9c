"""`relight up` and `relight down`: the embedded stack in the foreground or the background."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.cli import event_loop, output
from relight.cli.shared_options import AllowNet, AllowPath, Env, EnvFile, Gpu, Network, Wrapper
from relight.errors import StackError

if TYPE_CHECKING:
    from relight.stack.supervisor import StackEvent

SHOWN = frozenset({"note", "ready", "restarting", "stopping", "unresponsive", "url", "up"})
"""Kinds of events that are printed for people; `--json` prints all."""
EPILOG = {
    "up": """\b
Examples:
  relight up --agent my_agents:calculator
  relight up --agent my_agents:calculator --runners 2 --detach
  relight up --only postgres,temporal
  TEMPORAL_ADDRESS=temporal:7233 RELIGHT_POSTGRES_URL=postgresql://db/relight relight up""",
    "down": """\b
Examples:
  relight down
  relight down --home /data/relight""",
}


def up(
    agent: Annotated[
        list[str] | None, typer.Option(metavar="REF", help="Agent to serve, as package.module:name.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="PARTS", help="Start these parts only, as a,b,c.")] = None,
    runners: Annotated[int, typer.Option(min=1, help="Number of runner processes.")] = 1,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Attempts at once in each runner.")] = None,
    isolation: Annotated[str | None, typer.Option(help="process or sandbox; see `relight runner --help`.")] = None,
    env: Env = None,
    env_file: EnvFile = None,
    allow_path: AllowPath = None,
    allow_net: AllowNet = None,
    network: Network = None,
    gpu: Gpu = False,
    wrapper: Wrapper = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready, and leave it running.")] = False,
    report_to: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start the embedded stack: Postgres, Temporal, store, gateway, orchestrator, GPU worker and runner.

    A process that dies is started again. Ctrl-C stops all in order, a second Ctrl-C at once; no process is left. With
    TEMPORAL_ADDRESS or RELIGHT_POSTGRES_URL set, those servers are used and not started.
    """
    if detach:
        _detach()
        return
    single = {"--concurrency": concurrency, "--isolation": isolation, "--network": network, "--wrapper": wrapper}
    several = {"--env": [*(env or ()), *_handed_on(env_file or ())], "--env-file": [*map(str, env_file or ())]}
    several |= {"--allow-path": allow_path or [], "--allow-net": allow_net or []}
    flags = [word for name, value in single.items() if value is not None for word in (name, str(value))]
    flags += [word for name, values in several.items() for value in values for word in (name, value)]
    flags += ["--gpu"] if gpu else []
    parts = None if only is None else {name.strip() for name in only.split(",") if name.strip()}
    show = EventPrinter(report_to)
    options: dict[str, Any] = {"agents": tuple(agent or ()), "only": parts, "runners": runners, "runner_flags": flags}
    event_loop.run_service(_keep_up(show, isolation, wrapper or output.settings().wrapper, **options))


def _handed_on(env_files: Sequence[Path]) -> list[str]:
    """Names without a value in these files: the runner needs them from this process."""
    from relight.runner.agent_environment import read_env_file

    return [name for path in env_files for name, value in read_env_file(path).items() if value is None]


def down() -> None:
    """Stop the embedded stack of this home folder, and wait until none of its processes is left."""
    from relight.stack import stack_file

    home = output.settings().home.absolute()
    pid = stack_file.end(home)
    if not output.emitted({"home": str(home), "stopped_pid": pid}):
        print(f"stopped (pid {pid})" if pid else f"no stack is running in {home}")


class EventPrinter:
    """Prints the stack's events; with `--detach` also to the process that waits until the stack is up."""

    def __init__(self, report_to: int | None) -> None:
        self.started = time.monotonic()
        self._pipe = report_to

    def __call__(self, event: StackEvent) -> None:
        line = {"event": event.kind, "name": event.name, "text": event.text, **event.data}
        if not output.emitted(line) and event.kind in SHOWN:
            print(f"{time.monotonic() - self.started:7.1f} s  {event.text}", flush=True)
        if self._pipe is not None:
            with suppress(BrokenPipeError):  # that process has ended
                os.write(self._pipe, json.dumps(line, default=str).encode() + b"\n")

    def close_pipe(self) -> None:
        """Stop reporting to the process that waited."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


async def _keep_up(show: EventPrinter, isolation: str | None, wrapper: str | None, **options: Any) -> None:
    from relight.confinement import sandbox
    from relight.confinement.protections import describe, probe
    from relight.stack.embedded import EmbeddedStack
    from relight.stack.supervisor import StackEvent

    if options["agents"]:
        lacking = await sandbox.why_unavailable(isolation, sys.executable, sandbox.wrapper_command(wrapper))
        show(StackEvent("note", "runner", describe(await probe())))
        show(StackEvent("note", "runner", sandbox.describe(lacking)))
    home = output.settings().home
    async with EmbeddedStack(home, flags=output.current.flags, on_event=show, **options) as stack:
        await stack.wait_ready()
        show(StackEvent("up", "stack", "the stack is up; Ctrl-C or `relight down` stops it", {"home": str(stack.home)}))
        show.close_pipe()
        await asyncio.get_running_loop().create_future()


def _detach() -> None:
    """Run the same command in the background until it reports that the stack is up.

    Raises:
        StackError: it ended before that.
    """
    from relight.stack import stack_file

    home = output.settings().home.absolute()
    if pid := stack_file.running_pid(home):
        raise StackError(f"the stack in {home} is running already (pid {pid}); `relight down` stops it")
    log = home / "logs" / "up.log"
    for folder in (home, log.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
        child = subprocess.Popen(
            [*_own_command(), "--report-to", str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    try:
        came_up = _follow(reader)
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    if not came_up:
        from relight.processes.child import reason_in_log

        child.wait()
        raise StackError(reason_in_log(log))


def _own_command() -> list[str]:
    """This command line without `--detach`, and without `--json`: events come over the pipe."""
    own = [word for word in sys.argv[1:] if word not in ("--detach", "--json")]
    return [sys.executable, "-m", "relight.cli", *own]


def _follow(reader: int) -> bool:
    """Show events until the stack is up (True) or the process at the other end has ended (False)."""
    show = EventPrinter(None)
    with open(reader, "rb") as events:
        for line in events:
            event = _event(json.loads(line))
            show(event)
            if event.kind == "up":
                return True
    return False


def _event(data: dict[str, Any]) -> StackEvent:
    from relight.stack.supervisor import StackEvent

    return StackEvent(data.pop("event"), data.pop("name"), data.pop("text"), data)
