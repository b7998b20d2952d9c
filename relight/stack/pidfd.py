"""Handles to processes that are not children of this one: pidfd_open(2) and pidfd_send_signal(2).

The kernel may reuse the id of a process that has ended; a handle refers to its process alone. Python has both calls,
but not if it was built against the headers of an older kernel, as uv's builds (python-build-standalone) are.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Generator
from contextlib import contextmanager, suppress

_libc = ctypes.CDLL(None, use_errno=True)
_SEND_SIGNAL, _OPEN = 424, 434
"""Their numbers on x86-64 and 64-bit Arm alike."""


class ProcessHandle:
    """A handle to one process, even if its id is reused."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def ends_by(self, number: int, seconds: float) -> bool:
        """Send a signal; returns whether the process ends within this time."""
        with suppress(ProcessLookupError):
            _call(_SEND_SIGNAL, self._descriptor, number, 0, 0)
        return self.ends(seconds)

    def ends(self, seconds: float) -> bool:
        """Wait for its end."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])


@contextmanager
def open_process(pid: int) -> Generator[ProcessHandle]:
    """A handle to a process.

    Raises:
        ProcessLookupError: there is none with that number.
    """
    descriptor = _call(_OPEN, pid, 0)
    try:
        yield ProcessHandle(descriptor)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int) -> int:
    result: int = _libc.syscall(number, *(ctypes.c_long(argument) for argument in arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
