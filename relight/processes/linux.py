"""Functions on Linux processes: children, threads, parents' deaths, out-of-memory kills.

They use /proc and prctl without a third-party package, since the process that forks attempts must stay small.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from relight.processes.process_group_reaper import processes, state_of

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
SIGNALS: Final = {int(number): number.name for number in signal.Signals}
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent(parent: int) -> None:
    """This process is killed when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, whatever session they made for themselves."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    return SIGNALS.get(number, f"signal {number}")


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; at most 15 characters."""
    _prctl(_PR_SET_NAME, name.encode())


def children(pid: int) -> list[int]:
    """Processes whose parent is the single-threaded process `pid`, ended ones that wait to be reaped among them."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child for child in processes() if state_of(child)[1] == pid]


def thread_count() -> int:
    """The number of threads of this process, including those of C libraries."""
    return len(os.listdir("/proc/self/task"))


def data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")


def kill(pid: int) -> bool:
    """SIGKILL; False if there is no such process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_group(leader: int) -> None:
    """SIGKILL to a process group, if anything is left of it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def marked(marker: str, sessions: Collection[int]) -> list[int]:
    """Processes that carry `NAME=value` in the environment they were started with, or belong to one of `sessions`.

    A process that was only forked shows the environment of the program that it was forked from.
    """
    wanted = marker.encode()
    others = (pid for pid in processes() if pid != os.getpid())
    return [pid for pid in others if _carries(pid, wanted) or state_of(pid)[2] in sessions]


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or belongs to another user
        return False


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return state_of(pid)[0]


def oom_kills() -> int:
    """How many processes the kernel killed for lack of memory: in this control group, or else on this machine."""
    for path, key in (*_memory_files(), (Path("/proc/vmstat"), "oom_kill")):
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                if line.startswith(f"{key} "):
                    return int(line.split()[1])
    return 0


def _memory_files() -> Iterator[tuple[Path, str]]:
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield root / path.lstrip("/") / "memory.events", "oom_kill"
            elif "memory" in controllers.split(","):
                yield root / "memory" / path.lstrip("/") / "memory.oom_control", "oom_kill"
                yield root / "memory" / "memory.oom_control", "oom_kill"
