"""Displays of a run's progress: a live terminal, plain lines, or JSON lines."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from typing import Self

from relight.cli import output
from relight.cli.progress import ProgressEvent

QUIET_SECONDS = 30.0
"""After so long without a line the plain display prints what happens now."""
STYLES = {"evaluation": "bold cyan", "waiting": "yellow", "warning": "yellow", "note": "dim", "end": "bold"}


class Display(ABC):
    """Shows lines that stay and one status line that changes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @abstractmethod
    def event(self, event: ProgressEvent) -> None:
        """Show a line that stays."""

    def note(self, text: str) -> None:
        """Show a remark that stays."""
        self.event(ProgressEvent("note", text))

    @abstractmethod
    def status(self, text: str) -> None:
        """Show what happens now."""


class PlainDisplay(Display):
    """Prints plain lines, for logs and pipes."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def event(self, event: ProgressEvent) -> None:
        self._last = time.monotonic()
        output.say(event.text)

    def status(self, text: str) -> None:
        if time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            output.say(text)


class JsonDisplay(PlainDisplay):
    """Prints a JSON object for each event on stdout."""

    def event(self, event: ProgressEvent) -> None:
        output.emit({"event": event.kind, **(event.data or {"text": event.text})})

    def status(self, text: str) -> None:
        return


class LiveDisplay(Display):
    """Uses a terminal: lines scroll up, the last one changes in place."""

    def __init__(self) -> None:
        # rich takes 0.2 s to import, and is needed for terminals only
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        self._text = Text
        self._console = Console(highlight=False)
        self._spinner = Spinner("dots", Text("starting"))
        self._live = Live(self._spinner, console=self._console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, event: ProgressEvent) -> None:
        self._console.print(self._text(event.text, style=STYLES.get(event.kind, "")), soft_wrap=True)

    def status(self, text: str) -> None:
        self._spinner.update(text=self._text(text, overflow="ellipsis", no_wrap=True))


def make_display() -> Display:
    """The display that suits stdout and the options."""
    if output.wants_json():
        return JsonDisplay()
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()
