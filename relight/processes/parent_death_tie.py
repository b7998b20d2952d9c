"""Run a command that ends when its parent ends: `python -I -S parent_death_tie.py PARENT SIGNAL USER COMMAND...`.

The kernel sends SIGNAL when the parent dies (PR_SET_PDEATHSIG). That setting is lost on a change of user, so a change
(USER other than `-`, only as root) comes first. A program of its own, since code between fork and exec is not safe in
a parent with threads. Standard library only, and it imports nothing of Relight: it starts in 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1


def become(user: str) -> None:
    """Change to that user, without root's groups and with a umask for private files."""
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.umask(0o077)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


def tie_to(parent: int, signal_number: int) -> None:
    """Have the kernel signal this process when its parent dies; end at once if that has happened."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the parent process is gone")


def main(arguments: list[str]) -> None:
    """Parse, tie, become the command."""
    parent, signal_number, user, *command = arguments
    if user != "-":
        become(user)
    tie_to(int(parent), int(signal_number))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"can't run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
