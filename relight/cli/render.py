"""Tables, times and command lines for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from relight.cli import output


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; lines are never cut if stdout is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)


def own_program(folder: Path | None = None) -> str:
    """How to call the `relight` command of this Python from this folder, for printed command lines."""
    beside = Path(sys.executable).with_name("relight")
    if not beside.exists():
        return f"{sys.executable} -m relight.cli"
    if shutil.which("relight") == str(beside):
        return "relight"
    here = folder or Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def command_line(*words: str) -> str:
    """A `relight` command line that the user can copy, with the home folder if one was given."""
    home = output.current.flags.get("home")
    return " ".join([own_program(), *words, *(["--home", str(home)] if home else [])])


def when(moment: datetime | None) -> str:
    """A point in time, in the user's time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def duration(start: datetime, end: datetime | None) -> str:
    """How long something took, or that it is under way."""
    return f"{(end - start).total_seconds():.1f} s" if end else "under way"


def shorten(text: str, width: int) -> str:
    """One line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def indent(text: str, by: str = "    ") -> str:
    """A block of text, indented."""
    return "\n".join(f"{by}{line}" for line in text.rstrip().splitlines())
