"""TCP ports of this machine: which are free, and which processes use the others."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from relight.errors import StackError

LOOPBACK = "127.0.0.1"
_claims: dict[int, int] = {}
"""Descriptors of the locks on the ports that this process chose."""


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now."""
    return _refusal(port, host) is None


def _refusal(port: int, host: str) -> OSError | None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set it too: TIME_WAIT is no obstacle
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def any_free(host: str = LOOPBACK) -> int:
    """A port that the kernel picks."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def choose(wanted: Collection[int], taken: Collection[int] = ()) -> int:
    """The first free one of the wanted ports, or any other free port; never one of `taken`.

    The port is reserved until this process ends, so that stacks that boot at the same time choose different ports, and
    no stack takes the port of a server that is being restarted.
    """
    for port in wanted:
        if port not in taken and is_free(port) and claim(port):
            return port
    while (port := any_free()) in taken or not claim(port):
        pass
    return port


def claim(port: int) -> bool:
    """Reserve a port; False if another stack of this user has reserved it."""
    if port in _claims:
        return True
    descriptor = os.open(_claims_folder() / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _claims[port] = descriptor
    return True


def _claims_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"relight-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def address(url: str) -> tuple[str, int]:
    """Host and port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or LOOPBACK, parts.port or (443 if parts.scheme == "https" else 80)


def require_free(url: str, what: str, source: str) -> None:
    """Check that a service can listen at its URL.

    Raises:
        StackError: it can't; the message names the process that uses the port, if it is visible.
    """
    host, port = address(url)
    refusal = _refusal(port, host)
    if refusal is None:
        return
    if refusal.errno != errno.EADDRINUSE:
        raise StackError(f"the {what} can't listen on {host}:{port} (from {source}): {refusal.strerror or refusal}")
    raise StackError(
        f"port {port} on {host} for the {what} (from {source}) is in use{_held_by(port)}; "
        "stop that process or give another address"
    )


def _held_by(port: int) -> str:
    pid = holder(port)
    return f" by {process_name(pid)} (pid {pid})" if pid else ""


def holder(port: int) -> int | None:
    """The id of the process that listens on a port, if this user may read its descriptors."""
    inodes = _listening_inodes(port)
    for entry in Path("/proc").iterdir() if inodes else ():
        if entry.name.isdigit() and inodes & _socket_inodes(entry):
            return int(entry.name)
    return None


def listens(pid: int, port: int) -> bool:
    """Whether this process, and no other, listens on the port."""
    return bool(_listening_inodes(port) & _socket_inodes(Path(f"/proc/{pid}")))


def process_name(pid: int) -> str:
    """Short name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process"


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _socket_inodes(process: Path) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):  # it ended, or belongs to another user
        for name in os.listdir(process / "fd"):
            with suppress(OSError):  # closed by now
                found.add(os.readlink(process / "fd" / name))
    return found
