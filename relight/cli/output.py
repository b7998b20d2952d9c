"""What all commands share: the options of this invocation, and how to print.

A command takes addresses from `settings()` and prints with `say()` for people and `emitted()` for `--json`. It does not
format errors: it raises a `RelightError`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from relight.errors import AgentLoadError, ConfigError, DatasetError, InvalidRequestError, ModelError, RelightError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from relight.settings import Settings

BAD_INPUT = (ConfigError, DatasetError, AgentLoadError, ModelError, InvalidRequestError)


@dataclass
class GlobalOptions:
    """The shared options as given on the command line."""

    flags: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings given on the command line."""
    json: bool = False


current = GlobalOptions()
"""The options of this process; set by `shared_options`, read by commands."""


def settings() -> Settings:
    """The settings, in which command-line options take precedence."""
    from relight.settings import resolve  # pydantic takes 0.15 s to import, and --help needs none of it

    return resolve(current.flags).settings


def wants_json() -> bool:
    """Whether `--json` was given."""
    return current.json


def emit(value: Mapping[str, Any]) -> None:
    """Print one JSON line on stdout."""
    sys.stdout.buffer.write(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def emitted(*values: Mapping[str, Any] | BaseModel) -> bool:
    """Print each as one JSON line, if `--json` was given; whether it was."""
    if current.json:
        for value in values:
            emit(value if isinstance(value, Mapping) else value.model_dump(mode="json"))
    return current.json


def say(text: str) -> None:
    """Print one line for people on stdout; with `--json` on stderr, so that stdout has JSON lines only."""
    print(text, file=sys.stderr if current.json else sys.stdout, flush=True)


def exit_code(error: RelightError) -> int:
    """2 for bad input, 1 for other errors."""
    return 2 if isinstance(error, BAD_INPUT) else 1


def fail(error: RelightError) -> NoReturn:
    """Print the error in one line (or one JSON line on stdout) and end the process."""
    if current.json:
        emit({"error": {"type": type(error).__name__, "message": error.message}})
    else:
        print(f"error: {error.message}", file=sys.stderr, flush=True)
    raise SystemExit(exit_code(error))
