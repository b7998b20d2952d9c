"""What to say about an exception that confinement caused."""

from __future__ import annotations

import errno
import os

_DEPTH = 16


def remedy(error: BaseException | None) -> str:
    """The option that allows what a PermissionError among the causes of an exception was refused; else nothing."""
    for _ in range(_DEPTH):
        if error is None:
            break
        if isinstance(error, PermissionError) and error.errno == errno.EACCES:
            return _option(error)
        error = error.__cause__ or error.__context__
    return ""


def _option(error: PermissionError) -> str:
    if error.filename is None:
        return (
            "agents reach certain TCP ports only: `--allow-net PORT` of `relight runner` and `relight up` allows more"
        )
    path = os.path.abspath(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else "PATH"
    return f"agents may not do this at {path}: `--allow-path {path}` of `relight runner` and `relight up` allows it"
