"""Landlock: a process takes rights from itself and from all its descendants (landlock(7)).

A ruleset names the kinds of access that it handles, and the places where each is allowed; handled access anywhere else
fails with EACCES. Rulesets of one process add up: what each of them allows is allowed. A folder is allowed with all
that it holds, and a rule belongs to an inode: a file that is replaced by another one loses its rule. Kernels differ in
what they can handle (the ABI), and a ruleset handles what its kernel can.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from functools import cache
from typing import Final

from relight.confinement.syscalls import is_missing, syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_VERSION = 1
_RULE_PATH, _RULE_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
TRUNCATE: Final = 1 << 14
IOCTL_DEVICE: Final = 1 << 15
READ: Final = EXECUTE | READ_FILE | READ_DIR
FILES_BY_ABI: Final = ((1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""Access to files that a kernel can handle, by its ABI from 1 on; later ones add none."""
ALL: Final = FILES_BY_ABI[-1]
OF_A_FILE: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
"""Access that a rule for something other than a folder may name."""
BIND_TCP, CONNECT_TCP = 1, 2
NETWORK_ABI: Final = 4
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
SCOPE_ABI: Final = 6


class _Attributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _PortRule(ctypes.Structure):
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


@cache
def abi() -> int:
    """The kernel's ABI; 0: it has no Landlock."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _VERSION)
    except OSError as error:
        if is_missing(error):
            return 0
        raise


def open_path(path: str) -> int | None:
    """A descriptor that names a file for rules; None if it does not exist or can't be reached."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None


class Ruleset:
    """What the process keeps of the access that this kernel can take."""

    def __init__(self, *, network: bool = True) -> None:
        """`network` is False for a ruleset that leaves TCP as it is."""
        self._files = FILES_BY_ABI[min(abi(), len(FILES_BY_ABI)) - 1]
        self._network = BIND_TCP | CONNECT_TCP if network and abi() >= NETWORK_ABI else 0
        scoped = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if abi() >= SCOPE_ABI else 0
        attributes = _Attributes(self._files, self._network, scoped)
        size = ctypes.sizeof(attributes) if scoped else 16 if self._network else 8  # an old kernel knows a part of it
        self._descriptor = syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)

    def allow(self, descriptor: int, access: int) -> None:
        """Allow access to a file, or to a folder and all in it; see `open_path`."""
        granted = access & self._files
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            granted &= OF_A_FILE
        self._add(_RULE_PATH, _PathRule(granted, descriptor))

    def allow_ports(self, access: int, ports: Iterable[int]) -> None:
        """Allow TCP to ports, or from them; port 0 stands for one that the kernel chooses."""
        for port in ports if self._network else ():
            self._add(_RULE_PORT, _PortRule(access, port))

    def _add(self, kind: int, rule: ctypes.Structure) -> None:
        syscall(_ADD_RULE, self._descriptor, kind, ctypes.byref(rule), 0)

    def restrict(self) -> None:
        """Restrict this thread and what it starts from now on, for good; it must have given up new privileges."""
        syscall(_RESTRICT_SELF, self._descriptor, 0)

    def close(self) -> None:
        os.close(self._descriptor)
