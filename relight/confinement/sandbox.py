"""What fork servers run within: namespaces, if this machine has them, and a wrapper of the user's own."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import orjson

from relight.confinement import namespaces
from relight.confinement.policy import ConfinementPolicy
from relight.errors import ConfigError

NONE: Final = "agents have no namespaces of their own"
REMEDIES: Final = {
    "unshare": "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0"
    " and kernel.unprivileged_userns_clone=1, where there are such), or start the container with CAP_SYS_ADMIN",
    "mount": "start the container so that it hides nothing of /proc and may mount"
    " (podman and Docker: --security-opt systempaths=unconfined --security-opt apparmor=unconfined)",
}
SOCKETS: Final = (
    *("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"),
    *(f"/run/user/{os.getuid()}/docker.sock", f"/run/user/{os.getuid()}/podman/podman.sock"),
)
"""Sockets by which a process can have any other one started, outside of its own confinement."""


def command(python: str, covered: Iterable[str] = ()) -> list[str]:
    """The start of a command that runs in namespaces of its own, where the covered paths are empty."""
    return [python, "-I", "-S", namespaces.__file__, orjson.dumps({"covered": list(covered)}).decode()]


def hidden_paths(policy: ConfinementPolicy, scratch: str, sockets: Iterable[str] = SOCKETS) -> list[str]:
    """The paths that agents find empty: what is hidden from them, unless they may use something in it; and sockets."""
    seen = [Path(path) for path in (scratch, *policy.readable, *policy.writable)]
    hidden = [path for path in policy.hidden if not any(other.is_relative_to(path) for other in seen)]
    return [path for path in (*hidden, *open_sockets(sockets)) if os.path.exists(path)]


def open_sockets(paths: Iterable[str] = SOCKETS) -> list[str]:
    """Those of the sockets that this user, and so an agent, can connect to; Landlock does not close sockets by path."""
    return sorted({os.path.realpath(path) for path in paths if os.access(path, os.W_OK)})


async def namespace_error(python: str, wrapper: Sequence[str] = ()) -> str:
    """What keeps agents from namespaces of their own, with the mend, as a process that tried found; empty: nothing."""
    process = await asyncio.create_subprocess_exec(
        *(*wrapper, *command(python, [namespaces.__file__]), python, "-I", "-S", "-c", ""),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode == 0:
        return ""
    error = (said.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    mend = next((mend for call, mend in REMEDIES.items() if error.startswith(call)), "see docs/security.md")
    return f"{error}; {mend}"


async def why_unavailable(isolation: str | None, python: str, wrapper: Sequence[str]) -> str:
    """Why agents get no namespaces; empty if they do.

    Raises:
        ConfigError: `sandbox` was asked for, and can't be had.
    """
    if isolation == "process":
        return "--isolation process"
    why = await namespace_error(python, wrapper)
    if why and isolation == "sandbox":
        raise ConfigError(f"--isolation sandbox can't be had on this machine: {why}; or run without that option")
    return why


def wrapper_command(text: str | None) -> list[str]:
    """The words of a wrapper.

    Raises:
        ConfigError: there is no such program, or a quote is not closed.
    """
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise ConfigError(f"RELIGHT_WRAPPER {text!r}: {error}; quote it as for a shell") from error
    if words and shutil.which(words[0]) is None:
        raise ConfigError(f"RELIGHT_WRAPPER: there is no program {words[0]!r}; install it, or give its path")
    return words


def describe(lacking: str) -> str:
    """One line: whether agents have namespaces, and why not."""
    return f"{NONE}: {lacking}" if lacking else "agents have PID, IPC and mount namespaces of their own"
