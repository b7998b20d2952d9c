"""Runs a command so that none of its processes outlives the parent: `process_group_reaper.py PARENT_PID COMMAND...`.

vLLM's API server starts processes that live on when it is killed. The reaper leads a session of its own, adopts the
orphans of the command, and kills all of them, whatever session they made for themselves, when the command has ended,
the parent has died or SIGHUP came. It passes SIGTERM on to the command. If the reaper itself is killed, the kernel
kills the command, and `ChildProcess` the rest.

The kernel watches the thread that started the reaper, so that must be one that lives as long as its process. Uses the
standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP}


def processes() -> Iterator[int]:
    """All visible processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def state_of(pid: int) -> tuple[bool, int, int]:
    """Whether a process runs (and is not a zombie), its parent, and its session; 0 for none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return False, 0, 0
    return state not in (b"Z", b"X"), int(parent), int(session)


def members_of_session(session: int) -> list[int]:
    """Processes that live in a session, its leader included."""
    states = ((pid, *state_of(pid)) for pid in processes())
    return [pid for pid, alive, _parent, its_session in states if alive and its_session == session]


def children(pid: int) -> list[int]:
    """Processes whose parent is the single-threaded process `pid`, ended ones that wait to be reaped among them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child for child in processes() if state_of(child)[1] == pid]


def kill_session(session: int) -> None:
    """SIGKILL all processes of a session, repeatedly, as they may fork meanwhile."""
    while members := members_of_session(session):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _kill_children() -> None:
    """SIGKILL all children until there is none: those of an ended child become children of this process."""
    while found := children(os.getpid()):
        for pid in found:
            os.kill(pid, signal.SIGKILL)  # it is there until it is waited for
        for pid in found:
            os.waitpid(pid, 0)


def prctl(option: int, argument: int | bytes) -> None:
    """prctl(2)."""
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _in_command() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        sys.exit(1)
    child = subprocess.Popen(command, close_fds=False, preexec_fn=_in_command)
    code = _watch(child, parent)
    _kill_children()
    sys.exit(code if code >= 0 else 128 - code)


def _watch(child: subprocess.Popen[bytes], parent: int) -> int:
    """Wait until the command has ended, the parent has died, or all is to end."""
    while True:
        number = signal.sigwait(_HANDLED)
        if os.getppid() != parent or number == signal.SIGHUP:
            return 1
        if number != signal.SIGCHLD:
            child.send_signal(number)
        elif (code := child.poll()) is not None:
            return code


if __name__ == "__main__":
    main()
