"""Run a command so that nothing of it outlives us: `python guard.py PARENT_PID COMMAND...`, with the standard library.

vLLM's API server starts processes that live on when it is killed. The guard leads a session of its own, adopts what
the command's processes leave behind, and kills all of it when the command has ended or our parent has died. SIGTERM is
passed on to the command. If the guard itself is killed, the kernel kills the command, and `ChildProcess` the rest.

The kernel watches the thread that started the guard, so that must be one that lives as long as its process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def members_of_session(session: int) -> list[int]:
    """Processes that live in a session, its leader included."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session_of(pid) == session]


def kill_session(session: int, spare: int | None = None) -> None:
    """SIGKILL until nobody is left but `spare`; what is forked meanwhile is met in the next round."""
    while victims := [pid for pid in members_of_session(session) if pid != spare]:
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if spare is not None:
            _reap()


def _session_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(session)


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
