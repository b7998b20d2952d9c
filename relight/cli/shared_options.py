"""The options that every command takes, and the handling of its errors.

`registered` adds these options to a plain function or coroutine function, which need not name them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from relight.cli import output
from relight.errors import RelightError

Env = Annotated[list[str] | None, typer.Option(help="Environment variable that attempts may see.")]
EnvFile = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="File of NAME=VALUE lines: variables that attempts get; repeatable."),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file, dotted.")]
Detach = Annotated[bool, typer.Option("--detach", help="Start it and return.")]
AllowPath = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH[:ro]", help="File or folder that attempts may read and, without :ro, write to."),
]
AllowNet = Annotated[
    list[str] | None, typer.Option(metavar="PORT|any", help="TCP port that attempts may connect to and listen on.")
]
Network = Annotated[
    str | None,
    typer.Option(metavar="internet|gateway", help="Whether attempts may use the web's ports. Default: internet."),
]
Gpu = Annotated[bool, typer.Option("--gpu", help="Let attempts use this machine's GPUs.")]
Wrapper = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="Start of a command within which agents run, such as bwrap's.")
]
HELP = {
    "home": "Folder of the embedded stack and the checkpoints.",
    "store_url": "Address of the store service.",
    "gateway_url": "Address of the gateway, which agents call.",
    "postgres_url": "Address of Postgres (RELIGHT_POSTGRES_URL keeps a password off the command line).",
    "temporal_address": "host:port of the Temporal server.",
    "temporal_namespace": "Temporal namespace.",
    "log_level": "debug, info, warning or error.",
}


def make_app(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    """An application or a group of commands; rich takes 0.2 s to import, and the help needs no formatting."""
    plain: Any = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
    return typer.Typer(add_completion=add_completion, **plain, **options)


def registered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a command: with the shared options, and RelightErrors printed as one line with an exit code."""

    def command(**values: Any) -> Any:
        from relight.cli.home_log import log_to_home  # services log to stderr instead

        log_to_home()
        try:
            result = function(**values)
            return _await(result) if inspect.iscoroutine(result) else result
        except RelightError as error:
            output.fail(error)

    return with_options(command, like=function)


def with_options(function: Callable[..., Any], *, like: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The function with the shared options, which go to `output.current`. `like` gives the signature, if not itself."""
    own = _parameters(like or function)
    shared = [parameter for parameter in _options() if parameter.name not in {other.name for other in own}]

    def wrapper(**values: Any) -> Any:
        _take({parameter.name: values.pop(parameter.name) for parameter in shared})
        return function(**values)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    wrapper.__name__ = (like or function).__name__
    wrapper.__doc__ = (like or function).__doc__
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(wrapper)["__signature__"] = inspect.Signature(parameters)
    return wrapper


def _await(coroutine: Coroutine[Any, Any, Any]) -> Any:
    from relight.cli import event_loop  # asyncio takes 0.05 s to import, and --help needs none of it

    return event_loop.run(coroutine)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    return [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def _options() -> list[inspect.Parameter]:
    addresses = [
        _option(name, Path | None if name == "home" else str | None, None, text) for name, text in HELP.items()
    ]
    return [_option("json", bool, False, "Print JSON lines."), *addresses]


def _option(name: str, kind: Any, default: object, text: str) -> inspect.Parameter:
    shown = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])


def _take(values: dict[str, Any]) -> None:
    """Store the shared options of a call beside those given before the command's name."""
    output.current.json = bool(values.get("json")) or output.current.json
    given = {name: value for name, value in values.items() if name in HELP and value is not None}
    output.current.flags.update(given)
