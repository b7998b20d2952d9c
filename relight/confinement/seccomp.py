"""A seccomp filter that answers EPERM to system calls which agents have no use for and attackers have.

They reach into other processes, into the kernel, or into its tables of mounts and keys. A program for another
architecture, and x32's numbers, are refused as a whole, since the filter knows calls by their numbers.

Landlock's rules for ports hold for TCP's own connect(2) and bind(2). What reaches a port around them is refused here:
Multipath TCP and other protocols of streams, data that is sent with the opening of a connection (TCP Fast Open), and
families of sockets beside the local, the internet's and netlink, such as those to a virtual machine's host. Programs
take the answers for those of a kernel that has no such protocol.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from relight.confinement.syscalls import is_missing, syscall

_LOAD, _AND, _IF_EQUAL, _IF_GREATER_OR_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_ANSWER: Final = 0x00050000
"""With an error's number in the lower bits: the call fails with it."""
_REFUSE: Final = _ANSWER | errno.EPERM
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 32, 40
"""Offsets in the data that the kernel gives a filter; of an argument the lower half, on little-endian machines."""
_X32_BIT: Final = 0x40000000
_SET_FILTER: Final = 1
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""ioctl(2) requests that type into a terminal."""
SET_CHILD_SUBREAPER: Final = 36
_SOCKET_TYPE: Final = 0xF
"""The bits of socket(2)'s second argument that are its type."""
_FAST_OPEN: Final = 0x20000000

REFUSED: Final = {  # name: number on x86_64, number on aarch64 (None: it has no such call)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}


@dataclass(frozen=True)
class Architecture:
    """What a filter needs to know of a machine."""

    column: int
    """In `REFUSED`."""
    audit: int
    """The kernel's constant for it."""
    seccomp: int
    ioctl: int
    prctl: int
    socket: int
    sending: tuple[tuple[int, int], ...]
    """sendto, sendmmsg and sendmsg, each with the offset of its flags."""


def _sending(sendto: int, sendmmsg: int, sendmsg: int) -> tuple[tuple[int, int], ...]:
    return (sendto, _FOURTH_ARGUMENT), (sendmmsg, _FOURTH_ARGUMENT), (sendmsg, _THIRD_ARGUMENT)


ARCHITECTURES: Final = {
    "x86_64": Architecture(0, 0xC000003E, 317, 16, 157, 41, _sending(44, 307, 46)),
    "aarch64": Architecture(1, 0xC00000B7, 277, 29, 167, 198, _sending(206, 269, 211)),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_char_p))


def architecture() -> Architecture | None:
    """This machine's; None if there is no filter for it."""
    return ARCHITECTURES.get(platform.machine()) if struct.calcsize("P") == 8 else None


def program(on: Architecture, *, datagrams: bool = True) -> bytes:
    """The filter's instructions; without datagrams, UDP is refused too."""
    rows = [_row(_LOAD, _ARCHITECTURE), *_unless_equal(on.audit, _REFUSE), _row(_LOAD, _NUMBER)]
    if on.column == 0:
        rows += [_row(_IF_GREATER_OR_EQUAL, _X32_BIT, 0, 1), _row(_RETURN, _REFUSE)]
    for numbers in REFUSED.values():
        if (number := numbers[on.column]) is not None:
            rows += _refused_if_equal(number)
    rows += _refused_with(on.ioctl, _SECOND_ARGUMENT, [TIOCSTI, TIOCLINUX])
    rows += _subreaper_kept(on.prctl)
    rows += _sockets(on.socket, datagrams)
    for number, flags in on.sending:
        rows += _without_fast_open(number, flags)
    return b"".join([*rows, _row(_RETURN, _ALLOW)])


def _row(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _unless_equal(value: int, then: int) -> list[bytes]:
    return [_row(_IF_EQUAL, value, 1, 0), _row(_RETURN, then)]


def _refused_if_equal(value: int) -> list[bytes]:
    return [_row(_IF_EQUAL, value, 0, 1), _row(_RETURN, _REFUSE)]


def _refused_with(number: int, argument: int, values: Sequence[int]) -> list[bytes]:
    """Refuse a call with one of these values as an argument, by the 32 bits that the kernel itself looks at."""
    checks = [row for value in values for row in _refused_if_equal(value)]
    body = [_row(_LOAD, argument), *checks, _row(_RETURN, _ALLOW)]
    return [_row(_IF_EQUAL, number, 0, len(body)), *body]


def _subreaper_kept(prctl: int) -> list[bytes]:
    """An attempt's process adopts its orphans; without that they would leave its tree, which is watched."""
    off = [_row(_LOAD, _SECOND_ARGUMENT), *_refused_if_equal(0), _row(_RETURN, _ALLOW)]
    body = [_row(_LOAD, _FIRST_ARGUMENT), _row(_IF_EQUAL, SET_CHILD_SUBREAPER, 0, len(off)), *off]
    body.append(_row(_RETURN, _ALLOW))
    return [_row(_IF_EQUAL, prctl, 0, len(body)), *body]


def _sockets(number: int, datagrams: bool) -> list[bytes]:
    """Allow local sockets, netlink's, and of the internet's TCP and perhaps UDP."""
    tcp = [_row(_LOAD, _THIRD_ARGUMENT), *_allowed_if_equal(0), *_allowed_if_equal(socket.IPPROTO_TCP)]
    udp = [_row(_LOAD, _THIRD_ARGUMENT), *_allowed_if_equal(0), *_allowed_if_equal(socket.IPPROTO_UDP)]
    body = [_row(_LOAD, _FIRST_ARGUMENT), *_allowed_if_equal(socket.AF_UNIX), *_allowed_if_equal(socket.AF_NETLINK)]
    body += [_row(_IF_EQUAL, socket.AF_INET, 2, 0), _row(_IF_EQUAL, socket.AF_INET6, 1, 0)]
    body += [_row(_RETURN, _ANSWER | errno.EAFNOSUPPORT), _row(_LOAD, _SECOND_ARGUMENT), _row(_AND, _SOCKET_TYPE)]
    body += [_row(_IF_EQUAL, socket.SOCK_STREAM, 0, len(tcp)), *tcp]
    if datagrams:
        body += [_row(_LOAD, _SECOND_ARGUMENT), _row(_AND, _SOCKET_TYPE)]
        body += [_row(_IF_EQUAL, socket.SOCK_DGRAM, 0, len(udp)), *udp]
    body.append(_row(_RETURN, _ANSWER | errno.EPROTONOSUPPORT))
    return [_row(_IF_EQUAL, number, 0, len(body)), *body]


def _allowed_if_equal(value: int) -> list[bytes]:
    return [_row(_IF_EQUAL, value, 0, 1), _row(_RETURN, _ALLOW)]


def _without_fast_open(number: int, flags: int) -> list[bytes]:
    body = [_row(_LOAD, flags), _row(_IF_ANY_BIT, _FAST_OPEN, 0, 1), _row(_RETURN, _ANSWER | errno.EOPNOTSUPP)]
    body.append(_row(_RETURN, _ALLOW))
    return [_row(_IF_EQUAL, number, 0, len(body)), *body]


def install(*, datagrams: bool = True) -> bool:
    """Install the filter in this thread, for it and its descendants; it must have given up new privileges.

    False: there is no filter for this architecture, or the kernel has no seccomp.
    """
    on = architecture()
    if on is None:
        return False
    instructions = program(on, datagrams=datagrams)
    loaded = _Program(len(instructions) // 8, instructions)
    try:
        syscall(on.seccomp, _SET_FILTER, 0, ctypes.byref(loaded))
    except OSError as error:
        if is_missing(error) or error.errno == errno.EINVAL:  # EINVAL: a kernel without filters
            return False
        raise
    return True
