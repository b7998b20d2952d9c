"""Privileges that a process gives up: to be traced, to gain some by exec, and those of root beyond files."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from relight.processes.process_group_reaper import prctl

_SET_DUMPABLE, _CAPBSET_DROP, _SET_NO_NEW_PRIVS, _CAP_AMBIENT, _CLEAR_ALL = 4, 24, 38, 47, 4
_CAPABILITY_VERSION: Final = 0x20080522
KEPT: Final = {0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 4: "FSETID", 5: "KILL", 6: "SETGID", 7: "SETUID"}
"""Root's capabilities that agents keep, as root in a container expects to own files and to become another user. Without
SYS_RESOURCE the hard limits hold, without SYS_PTRACE and SYS_ADMIN other processes' memory is closed.
"""
_libc: Final = ctypes.CDLL(None, use_errno=True)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may read this one's memory and environment; exec makes it dumpable again."""
    prctl(_SET_DUMPABLE, int(dumpable))


def give_up_new_privileges() -> None:
    """No program that this process executes gains privileges by set-user-id bits or file capabilities."""
    prctl(_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up root's capabilities but `KEPT`; an ordinary user has none to give up."""
    permitted, bounding = _capabilities()
    if not permitted:
        return
    _libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    for number in range(64):
        if bounding >> number & 1 and number not in KEPT:
            _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)  # needs SETPCAP; without it no_new_privs bounds exec too
    kept = permitted & sum(1 << number for number in KEPT)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    if _libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def _capabilities() -> tuple[int, int]:
    """Permitted ones and those that exec could give, as bits."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(lines["CapPrm"], 16), int(lines["CapBnd"], 16)
