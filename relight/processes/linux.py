"""Functions on Linux processes: children, threads, parents' deaths, out-of-memory kills.

They use /proc and prctl without a third-party package, since the process that forks attempts must stay small.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from relight.processes.process_group_reaper import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    prctl,
    state_of,
)
from relight.processes.process_group_reaper import children as children

_PR_SET_NAME: Final = 15
SIGNALS: Final = {int(number): number.name for number in signal.Signals}


def die_with_parent(parent: int) -> None:
    """This process is killed when the thread that forked it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, whatever session they made for themselves."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    return SIGNALS.get(number, f"signal {number}")


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; at most 15 characters."""
    prctl(_PR_SET_NAME, name.encode())


def thread_count() -> int:
    """The number of threads of this process, including those of C libraries."""
    return len(os.listdir("/proc/self/task"))


def data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tree(root: int, limit: int | None = None) -> tuple[list[int], int]:
    """A process and its descendants, and the number of their threads; looks no further above the limit."""
    found, threads, waiting = [root], 0, [root]
    while waiting and (limit is None or threads <= limit):
        pid = waiting.pop()
        with suppress(OSError):  # it has ended
            names = os.listdir(f"/proc/{pid}/task")
            threads += len(names)
            for name in names:
                started = _children_of_thread(pid, name)
                found += started
                waiting += started
    return found, threads


def _children_of_thread(pid: int, thread: str) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()]
    except FileNotFoundError:  # it has ended, or the kernel is one without CONFIG_PROC_CHILDREN
        return children(pid) if thread == str(pid) else []


def kill_tree(root: int, seconds: float = 1.0) -> None:
    """SIGKILL a process and its descendants, which are stopped first: what is stopped forks no more."""
    deadline, stopped = time.monotonic() + seconds, set[int]()
    while (found := set(tree(root)[0]) - stopped) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= found
    for pid in {root, *stopped}:
        kill(pid)


def kill(pid: int) -> None:
    """SIGKILL, if there is such a process."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def anonymous_bytes(pid: int) -> int:
    """Private memory that a process has in use; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def kill_group(leader: int) -> None:
    """SIGKILL to a process group, if anything is left of it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


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
