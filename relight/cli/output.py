"""What every command shares: where it was told to look, and how it prints.

A command's module asks `settings()` for addresses and `say()`, `show()`, `emit()` to print; `--json` turns the last two
into JSON lines on stdout. No command formats errors itself: it raises a `RelightError`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from relight.errors import AgentLoadError, ConfigError, DatasetError, InvalidRequestError, ModelError, RelightError

if TYPE_CHECKING:
    from relight.settings import Settings

BAD_INPUT = (ConfigError, DatasetError, AgentLoadError, ModelError, InvalidRequestError)


@dataclass
class Invocation:
    """The flags that all commands take."""

    flags: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings given on the command line."""
    json: bool = False


current = Invocation()
"""This process' command line; set by the command table, read by commands."""


def settings() -> Settings:
    """The settings, command line first."""
    from relight.settings import resolve  # pydantic takes 0.15 s to import, and --help needs none of it

    return resolve(current.flags).settings


def wants_json() -> bool:
    """Whether `--json` was given."""
    return current.json


def emit(value: Mapping[str, Any]) -> None:
    """One JSON line on stdout."""
    sys.stdout.buffer.write(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """One line for people on stdout; with `--json` on stderr, where it is in nobody's way."""
    print(text, file=sys.stderr if current.json else sys.stdout, flush=True)


def exit_code(error: RelightError) -> int:
    """2 for bad input, 1 for the rest."""
    return 2 if isinstance(error, BAD_INPUT) else 1


def fail(error: RelightError) -> NoReturn:
    """Print the error in one line (or one JSON line on stdout) and end the process."""
    if current.json:
        emit({"error": {"type": type(error).__name__, "message": error.message}})
    else:
        print(f"error: {error.message}", file=sys.stderr, flush=True)
    raise SystemExit(exit_code(error))
