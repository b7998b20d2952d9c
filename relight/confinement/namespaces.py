"""Runs a command in PID, IPC and mount namespaces of its own: `namespaces.py TABLE COMMAND...`, TABLE being JSON.

The command is process 1 there: whatever is left ends with it, by the kernel's hand, and no process in there can kill it
or see any other outside. Its `/proc` shows these processes alone, its `/dev/shm` is its own, and the paths of TABLE's
`covered` are empty. Root makes the namespaces as root; an ordinary user, in a user namespace in which it keeps its own
id. It exits with the command's code, or with 128 and the number of the signal that ended it.

Runs before anything of the agent's, by the agents' own interpreter. Uses the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import sys
from collections.abc import Iterable

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
SHARED_MEMORY = "/dev/shm"
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def unshare() -> None:
    """Give this process' next child namespaces of its own."""
    wanted = NEW_MOUNTS | NEW_IPC | NEW_PID
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _checked(_libc.unshare(wanted), "unshare")
        return
    _checked(_libc.unshare(wanted | NEW_USER), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def mount(covered: Iterable[str]) -> None:
    """Mount what the namespaces show."""
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    _mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    if os.path.isdir(SHARED_MEMORY):
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", NO_SUID | NO_DEVICES, "mode=1777")
    for path in covered:
        if stat.S_ISDIR(os.stat(path).st_mode):
            _mount("tmpfs", path, "tmpfs", NO_SUID | NO_DEVICES | NO_EXEC | READ_ONLY, "mode=0555,size=4k")
        else:
            _mount("/dev/null", path, None, BIND)


def _die_with_parent() -> None:
    _checked(_libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")


def main() -> None:
    """Entry point."""
    table, command = json.loads(sys.argv[1]), sys.argv[2:]
    parent = os.getppid()
    try:
        unshare()
        _die_with_parent()  # a new user namespace may have undone it
        if os.getppid() != parent:
            sys.exit(1)
        child = os.fork()
        if child == 0:
            _die_with_parent()
            mount(table["covered"])
            os.execvp(command[0], command)
    except OSError as error:
        sys.exit(error.strerror or str(error))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
