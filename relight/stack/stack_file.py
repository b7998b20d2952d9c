"""The files of the embedded stack in its home folder: a lock, a token, and `stack.json`.

The lock shows whether a stack runs; the kernel releases it however the stack ends. `stack.json` is kept when the stack
stops, so that the next one uses the same addresses; it has no secrets that were given from outside.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from relight.errors import StackError
from relight.settings import STACK_FILE, TOKEN_FILE
from relight.stack.pidfd import open_process

LOCK_FILE = "up.lock"


@contextmanager
def locked(home: Path) -> Generator[None]:
    """Lock the home folder.

    Raises:
        StackError: another stack has locked it.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _taken(descriptor):
            raise StackError(
                f"the stack of {home} is running already (pid {_holder(descriptor)}); "
                "`relight down` stops it, `relight status` shows it"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Take the lock; a few tries, since a process that calls `running_pid` holds it for an instant."""
    for _ in range(5):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def running_pid(home: Path) -> int | None:
    """The id of the process that has locked the home folder, if any."""
    try:
        descriptor = os.open(home / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode()
    return int(text) if text.isdigit() else None


def end(home: Path, timeout_seconds: float = 30.0) -> int | None:
    """Stop the stack of a home folder and wait for its end; returns its pid, or None if there was none.

    Raises:
        StackError: it did not end, not even by SIGKILL.
    """
    pid = running_pid(home)
    if pid is None:
        return None
    with suppress(ProcessLookupError), open_process(pid) as process:
        if running_pid(home) != pid:  # it ended, and another process may have its number by now
            return pid
        if not any(process.ends_by(*how) for how in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, 5.0))):
            raise StackError(f"the stack of {home} (pid {pid}) did not stop")
    return pid


def ensure_token(home: Path) -> str:
    """The admin token of this home, created on first use, readable by its owner only."""
    path = home / TOKEN_FILE
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        write_private(path, token + "\n")
        return token


def write_stack(home: Path, data: Mapping[str, Any]) -> None:
    """Replace `stack.json`."""
    write_private(home / STACK_FILE, json.dumps(data, indent=1) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
