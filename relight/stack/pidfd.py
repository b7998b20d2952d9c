"""Handles to processes that are not our children: pidfd_open(2) and pidfd_send_signal(2).

The kernel may soon give the number of a process that ended to another one; a handle stays with its process. Python
has both calls, but not where it was built against the headers of an older kernel, as uv's builds
(python-build-standalone) are.
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
    """One process, also when another one has its number later."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def ends_by(self, number: int, seconds: float) -> bool:
        """Send a signal; whether the process has ended after so long."""
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
