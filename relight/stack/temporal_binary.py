"""Where the Temporal server comes from: PATH, caches, the SDK's download, a Go build.

Standard library only, and importable on its own by path: set-up uses it before Relight's environment exists.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CLI_VERSION = "1.8.2"
"""The release that tools/temporal builds."""
MINIMUM_SERVER = (1, 29)
STOP_SECONDS = 0.2
"""The interval at which a running build checks whether to stop."""
DOWNLOAD_HOST = "temporal.download"
PACKAGE = "github.com/temporalio/cli/cmd/temporal"
WAYS = f"""Ways to get one:
  - set TEMPORAL_ADDRESS to a server that you have (and TEMPORAL_* for TLS or an API key);
  - install the Temporal CLI, server {MINIMUM_SERVER[0]}.{MINIMUM_SERVER[1]} or newer, on PATH: https://docs.temporal.io/cli;
  - let this machine reach https://{DOWNLOAD_HOST};
  - install Go (https://go.dev/dl) with a module proxy in reach, and run `make setup` in a checkout."""


@dataclass(frozen=True)
class Binary:
    """A `temporal` command whose server is new enough."""

    path: Path
    version: str
    origin: str


@dataclass
class Search:
    """The server that was found, and notes on those that were not used."""

    found: Binary | None = None
    notes: list[str] = field(default_factory=list)


def server_version(binary: Path) -> tuple[int, ...] | None:
    """Version of the server in a `temporal` command; None if it has none or does not run."""
    try:
        answer = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"[Ss]erver (\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    return tuple(int(part) for part in match.groups("0")) if match else None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Shared by all checkouts of this user."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "relight"


def candidates(home: Path, environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    """Places to look, in order."""
    on_path = shutil.which("temporal", path=environ.get("PATH"))
    candidates = [(Path(on_path), "PATH")] if on_path else []
    candidates.append((home / "bin" / "temporal", "project"))
    cached = sorted(cache_folder(environ).glob("temporal-*"), reverse=True)
    return candidates + [(path, "cache") for path in cached if not path.name.endswith(".partial")]


def find(home: Path, environ: Mapping[str, str] = os.environ) -> Search:
    """Look for a server on this machine."""
    search = Search()
    for path, origin in candidates(home, environ):
        if not os.access(path, os.X_OK):
            continue
        version = server_version(path)
        shown = ".".join(map(str, version)) if version else "none"
        if version is None:
            search.notes.append(f"{path} is not used: it does not name its server's version")
        elif version < MINIMUM_SERVER:
            needed = ".".join(map(str, MINIMUM_SERVER))
            search.notes.append(f"{path} is not used: its server is {shown}, and {needed} or newer is needed")
        else:
            search.found = Binary(path, shown, origin)
            return search
    return search


def can_download(timeout_seconds: float = 3.0) -> bool:
    """Whether the host of the SDK's download can be reached."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        with socket.create_connection((DOWNLOAD_HOST, 443), timeout=timeout_seconds):
            return True
    except OSError:
        return False


async def download(destination: Path) -> None:
    """Download the server through the SDK, which starts it once.

    Raises:
        RuntimeError: out of reach.
    """
    from temporalio.testing import WorkflowEnvironment

    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        server = await WorkflowEnvironment.start_local(download_dest_dir=folder, dev_server_log_level="error")
        await server.shutdown()
        made = os.path.join(folder, os.listdir(folder)[0])
        os.replace(made, destination)


def build_command(output: Path) -> list[str]:
    """The Go build, run in tools/temporal."""
    return ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(output), PACKAGE]


def build(
    source: Path,
    destination: Path,
    scratch: Path,
    log: Path,
    launcher: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> None:
    """Build the server with Go; modules and objects go to `scratch`, which is removed after a success.

    `launcher` is put before the command (see parent_death_tie.py). `stop` ends the build.

    Raises:
        RuntimeError: the build failed; the message has the end of the log.
    """
    if not shutil.which("go"):
        raise RuntimeError("Go is not installed")
    for folder in (destination.parent, scratch, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    environ = dict(os.environ, GOMODCACHE=str(scratch / "modules"), GOCACHE=str(scratch / "objects"), CGO_ENABLED="0")
    environ["GOFLAGS"] = f"{environ.get('GOFLAGS', '')} -mod=readonly -modcacherw".strip()
    partial = destination.with_name(f"{destination.name}.{os.getpid()}.partial")
    with (
        open(log, "w", encoding="utf-8") as output,
        subprocess.Popen(
            [*launcher, *build_command(partial)],
            cwd=source,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as building,
    ):
        status = _until_built(building, stop)
    if status != 0 or server_version(partial) is None:
        partial.unlink(missing_ok=True)
        raise RuntimeError(f"the Go build failed: {last_line(log)} (all of it in {log})")
    partial.replace(destination)
    shutil.rmtree(scratch, ignore_errors=True)


def _until_built(building: subprocess.Popen[bytes], stop: threading.Event | None) -> int:
    while True:
        try:
            return building.wait(STOP_SECONDS if stop else None)
        except subprocess.TimeoutExpired:
            if stop and stop.is_set():
                os.killpg(building.pid, signal.SIGKILL)  # Go's compilers with it


def last_line(path: Path) -> str:
    """The last line of a log that is not empty."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


if __name__ == "__main__":
    import asyncio

    asyncio.run(download(Path(sys.argv[1])))
