"""Log lines of interactive commands go to a file in the home folder, so that they don't mix with the output.

Services write theirs to stderr (`relight.observability.logs`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler

from relight.cli import output
from relight.errors import RelightError
from relight.observability.logs import LineFormatter

FILE = "commands.log"
LONGEST_BYTES = 4 * 1024 * 1024
"""At this size the file is rotated (one old file is kept)."""


class HomeLog(logging.Handler):
    """Writes warnings and errors to `<home>/logs`, if that folder exists."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._file: RotatingFileHandler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a command does not fail if its log can't be written."""
        with suppress(RelightError, OSError):
            if self._file is None:
                folder = output.settings().home / "logs"
                if not folder.is_dir():
                    return
                self._file = RotatingFileHandler(folder / FILE, maxBytes=LONGEST_BYTES, backupCount=1)
                self._file.setFormatter(LineFormatter())
            self._file.handle(record)


def log_to_home() -> None:
    """Send the log lines of this process to the home folder."""
    logging.basicConfig(level=logging.WARNING, handlers=[HomeLog()], force=True)
