"""The table of commands. A command's module is imported when it runs, so `relight --help` is fast and needs no torch.

To add a command: one line in COMMANDS. The target is a function (sync or async), whose docstring is the help, or a
`typer.Typer` with subcommands. Its module may have EPILOG: examples for the end of the help (a line `\\b` first keeps
the line breaks), or a dict of them by function name.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import relight
from relight.cli import output, shared_options

STACK = "Stack"
RUNS = "Runs"
SERVICES = "Services, a process each (`relight up` starts them all)"


@dataclass(frozen=True)
class CommandEntry:
    """The function of a command, and its line in `relight --help`."""

    target: str
    help: str
    panel: str


COMMANDS: dict[str, CommandEntry] = {
    "up": CommandEntry("relight.cli.up:up", "Start the embedded stack and keep it running.", STACK),
    "down": CommandEntry("relight.cli.up:down", "Stop the embedded stack of this folder.", STACK),
    "config": CommandEntry("relight.cli.config:config", "Show every setting and its source.", STACK),
    "token": CommandEntry("relight.cli.tokens:app", "Create, list and revoke tokens of the store.", STACK),
    "schema": CommandEntry("relight.cli.schema:schema", "Print the JSON Schema of a run file.", RUNS),
    "train": CommandEntry("relight.cli.train:train", "Start or resume a run, and watch it.", RUNS),
    "data": CommandEntry("relight.cli.datasets:app", "Put data sets into the store.", RUNS),
    "status": CommandEntry("relight.cli.status:status", "Show the stack, its workers and its runs.", RUNS),
    "runs": CommandEntry("relight.cli.runs:runs", "List runs.", RUNS),
    "rollouts": CommandEntry("relight.cli.rollouts:rollouts", "List a run's rollouts and why they failed.", RUNS),
    "serve": CommandEntry("relight.cli.serve:serve", "Serve a run's model with OpenAI's API.", RUNS),
    "plot": CommandEntry("relight.cli.plot:plot", "Draw a run's reward curve.", RUNS),
    "pause": CommandEntry("relight.cli.run_control:pause", "Pause a run.", RUNS),
    "resume": CommandEntry(
        "relight.cli.run_control:resume", "Resume a run that is paused, interrupted or cancelled.", RUNS
    ),
    "stop": CommandEntry("relight.cli.run_control:stop", "Finish a run early.", RUNS),
    "cancel": CommandEntry("relight.cli.run_control:cancel", "End a run, or one rollout.", RUNS),
    "retry": CommandEntry("relight.cli.run_control:retry", "Try failed rollouts again.", RUNS),
    "set": CommandEntry("relight.cli.run_control:set_", "Change a live run.", RUNS),
    "fork": CommandEntry("relight.cli.fork_replay_regrade:fork", "Start a run from a checkpoint of another.", RUNS),
    "replay": CommandEntry("relight.cli.fork_replay_regrade:replay", "Train on another run's rollouts.", RUNS),
    "regrade": CommandEntry(
        "relight.cli.fork_replay_regrade:regrade", "Grade a run's attempts with another grader.", RUNS
    ),
    "logs": CommandEntry("relight.cli.logs:logs", "Print logs of the stack, or of an attempt.", RUNS),
    "demo": CommandEntry("relight.cli.demo:demo", "Train the calculator agent from start to end.", RUNS),
    "runner": CommandEntry("relight.cli.services:runner", "Serve agents: run their attempts.", SERVICES),
    "store": CommandEntry("relight.cli.store:app", "Serve the store over HTTP; check it; delete old data.", SERVICES),
    "gateway": CommandEntry("relight.cli.services:gateway", "Serve model calls to agents and record them.", SERVICES),
    "orchestrator": CommandEntry("relight.cli.services:orchestrator", "Run the workflows.", SERVICES),
    "gpu-worker": CommandEntry("relight.cli.services:gpu_worker", "Run the engines and the trainer.", SERVICES),
}
EPILOG = """\b
Examples:
  relight up --agent my_agents:calculator
  relight train run.json
  relight status --watch my-run"""


def load(name: str) -> Any:
    """Import a command."""
    module_name, _, attribute = COMMANDS[name].target.partition(":")
    module = importlib.import_module(module_name)
    target = getattr(module, attribute)
    if isinstance(target, typer.Typer):
        for info in target.registered_commands:
            info.callback = shared_options.registered(info.callback) if info.callback else None
        own = target.registered_callback
        if own and own.callback:
            own.callback = shared_options.registered(own.callback)
        return typer.main.get_command(target)
    epilog = getattr(module, "EPILOG", None)
    text = epilog.get(attribute) if isinstance(epilog, dict) else epilog
    return _click_command(name, shared_options.registered(target), epilog=text)


def _click_command(name: str, function: Any, **attributes: Any) -> Any:
    app = shared_options.make_app()
    app.command(name, **attributes)(function)
    return typer.main.get_command(app)


def _line_in_help(name: str) -> Any:
    def not_loaded() -> None:
        """A placeholder in the help; the command itself is loaded when it is called."""

    entry = COMMANDS[name]
    return _click_command(name, not_loaded, help=entry.help)


class LazyGroup(typer.core.TyperGroup):
    """A group that imports a command only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _line_in_help(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            return args[0], load(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel in (STACK, RUNS, SERVICES):
            with formatter.section(panel):
                formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items() if entry.panel == panel])


def _show_version(wanted: bool) -> None:
    if wanted:
        print(relight.__version__)
        raise typer.Exit


def _shared(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """The options before the command's name."""


def build() -> typer.Typer:
    """The `relight` application."""
    app = shared_options.make_app(name="relight", cls=LazyGroup, no_args_is_help=True, add_completion=True)
    app.callback(help="Durable reinforcement learning for AI agents: no crash loses finished work.", epilog=EPILOG)(
        shared_options.with_options(_shared)
    )
    return app


def run() -> None:
    """Parse the command line and run its command."""
    output.current = output.GlobalOptions()
    build()(prog_name="relight")
