"""Runners that an agent attacks, as this user and, where this is root, as an ordinary one."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
ORDINARY = "nobody"
Attacked = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def attacked() -> Generator[Attacked]:
    """What came of the attacks, by user and policy: `confined`, `open`, or a layer to leave out."""
    with tempfile.TemporaryDirectory(prefix="relight-attacked-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)

        @cache
        def ended(user: str, policy: str) -> dict[str, Any]:
            own = Path(folder, f"{user}-{policy}")
            own.mkdir(exist_ok=True)  # where the first try was skipped
            return attack(own, user, policy)

        yield ended


@pytest.fixture(params=["this user", ORDINARY])
def user(request: pytest.FixtureRequest) -> str:
    """Each user that the attacks are tried as."""
    if request.param == ORDINARY and os.getuid() != 0:
        pytest.skip("only root can become another user; this user is an ordinary one already")
    return request.param


OPEN_THE_INTERPRETER = """
set -e
mount --make-rprivate /
mkdir -p "$1" && mount --bind "$2" "$1"
mount -t tmpfs -o mode=755 tmpfs "$3"
mkdir -p "$2" && mount --move "$1" "$2"
shift 3
exec "$@"
"""
"""In mount namespaces of their own ordinary users can enter the folder above root's interpreter."""


def as_user(entry: pwd.struct_passwd, held: Path) -> list[str]:
    """The start of a command that runs as an ordinary user, without root's capabilities; `held` is a new folder."""
    become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    become += ["--inh-caps=-all", "--bounding-set=-all"]
    prefix = Path(sys.base_prefix)
    path = [*reversed(prefix.parents), prefix]
    closed = next((folder for folder in path if not folder.stat().st_mode & 0o001), None)
    if closed is None:
        return become
    if closed == prefix or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip(f"an ordinary user can't enter {closed}, where this interpreter is")
    below = path[path.index(closed) + 1]
    return ["unshare", "-m", "sh", "-c", OPEN_THE_INTERPRETER, "sh", str(held), str(below), str(closed), *become]


def attack(folder: Path, user: str, policy: str) -> dict[str, Any]:
    """Have an agent attack; how each attack ended."""
    become: list[str] = []
    if user == ORDINARY:
        entry = pwd.getpwnam(ORDINARY)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        become = as_user(entry, folder.with_name(f"{folder.name}-held"))
    done = subprocess.run(
        [*become, sys.executable, "-m", "tests.unit.confinement.attacked", str(folder), policy],
        cwd=ROOT,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
