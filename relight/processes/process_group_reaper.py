"""Runs a command so that none of its processes outlives the parent: `process_group_reaper.py PARENT_PID COMMAND...`.

vLLM's API server starts processes that live on when it is killed. The reaper leads a session of its own, adopts the
orphans of the command, and kills all of them when the command has ended or the parent has died. It passes SIGTERM on
to the command. If the reaper itself is killed, the kernel kills the command, and `ChildProcess` the rest.

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

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


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


def kill_session(session: int, spare: int | None = None) -> None:
    """SIGKILL all processes of a session but `spare`, repeatedly, as they may fork meanwhile."""
    while victims := [pid for pid in members_of_session(session) if pid != spare]:
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if spare is not None:
            _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _in_command() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        sys.exit(1)
    child = subprocess.Popen(command, close_fds=False, preexec_fn=_in_command)
    code = _watch(child, parent)
    kill_session(os.getpid(), spare=os.getpid())
    sys.exit(code if code >= 0 else 128 - code)


def _watch(child: subprocess.Popen[bytes], parent: int) -> int:
    """Wait until the command has ended or the parent has died."""
    while True:
        number = signal.sigwait(_HANDLED)
        if os.getppid() != parent:
            return 1
        if number != signal.SIGCHLD:
            child.send_signal(number)
        elif (code := child.poll()) is not None:
            return code


if __name__ == "__main__":
    main()
