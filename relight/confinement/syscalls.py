"""System calls that Python has no function for, by ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def syscall(number: int, *arguments: Any) -> int:
    """The result of a system call; integers are passed as 64 bits wide.

    Raises:
        OSError: it failed.
    """
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return result


def is_missing(error: OSError) -> bool:
    """Whether an error says that the kernel lacks a system call, was started without it, or is kept from this process
    by a container's filter.
    """
    return error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
