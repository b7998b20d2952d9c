"""Log lines: `time level action key=value ...`, one line each, on stderr.

    log = logging.getLogger(__name__)
    log.info(Line("attempt_opened", rollout=rollout_id, number=2))
    log.info("runner serves %s", name, extra={"action": "runner_up", "agent": name})

Built on `logging`; it adds the format and nothing else: what is in `extra` becomes keys, a message beside an action
becomes `msg`. Secrets have no place in values: nothing is redacted here.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping

from relight.errors import ConfigError

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
NEEDS_QUOTES = re.compile(r'[\s"=]|^$')


class Line:
    """An action and its values; the text is formatted only if the line is written."""

    def __init__(self, action: str, /, **values: object) -> None:
        self.action = action
        self.values = values

    def __str__(self) -> str:
        return " ".join([self.action, *(f"{key}={_quoted(value)}" for key, value in self.values.items())])


PLAIN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every record has; others come from `extra`."""


class LineFormatter(logging.Formatter):
    """Time in UTC with milliseconds, level in lower case; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{seconds}.{int(record.msecs):03d}Z {record.levelname.lower()} {_content(record)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _content(record: logging.LogRecord) -> str:
    message = record.getMessage()
    # A name with a leading underscore is a library's private attribute of the record, such as Ray's.
    extra = {key: value for key, value in vars(record).items() if key not in PLAIN_FIELDS and key[0] != "_"}
    action = extra.pop("action", None)
    if action is None:
        return str(Line(message, **extra))
    return str(Line(str(action), **extra, msg=message))


def configure(level: str = "info") -> None:
    """Send all log lines of this process to stderr.

    Raises:
        ConfigError: a level that does not exist.
    """
    if level not in LEVELS:
        raise ConfigError(f"log_level {level!r} does not exist; use one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    for chatty in ("uvicorn", "temporalio"):  # their info lines repeat Relight's own
        logging.getLogger(chatty).setLevel(max(LEVELS[level], logging.WARNING))


def _quoted(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if not NEEDS_QUOTES.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
