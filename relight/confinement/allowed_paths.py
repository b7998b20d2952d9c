"""The files that agents may read: what programs need of the system, the interpreter, and the project with its gaps.

Landlock can't take a folder out of one that it allows. So a folder that holds something hidden is opened entry by
entry: its names can be listed, and an entry that is created or replaced later can be read once the fork server has been
started again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from relight.confinement import landlock
from relight.confinement.policy import ConfinementPolicy

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/proc", "/nix/store"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/var/cache/fontconfig"),
    *("/run/systemd/resolve", "/run/resolvconf"),  # what /etc/resolv.conf may lead to
)
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/shm")
HIDDEN_IN_A_PROJECT: Final = frozenset({".relight", ".git"})
HIDDEN_PREFIX: Final = ".env"
INSTALLED: Final = ("/site-packages", "/dist-packages")


@dataclass(frozen=True)
class AllowedPath:
    """A file or a folder with all in it, and what is allowed there."""

    path: str
    access: int


@dataclass(frozen=True)
class Gaps:
    """What stays closed within folders that are read."""

    paths: Sequence[str]
    projects: Sequence[str]
    """Folders whose `.relight`, `.git` and `.env*` stay closed."""
    user_home: str
    """A folder whose hidden entries all stay closed."""

    def below(self, folder: str) -> bool:
        """Whether a folder holds one of them, or may come to."""
        return any(_is_in(path, folder) for path in (*self.paths, *self.projects, self.user_home))

    def holds(self, path: str) -> bool:
        return any(_is_in(path, hidden) for hidden in self.paths)

    def closes(self, folder: str, name: str) -> bool:
        if folder == self.user_home and name.startswith("."):
            return True
        return folder in self.projects and (name in HIDDEN_IN_A_PROJECT or name.startswith(HIDDEN_PREFIX))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def allowed_paths(policy: ConfinementPolicy, references: Iterable[str]) -> list[AllowedPath]:
    """The paths that the agents with these references may use; for the interpreter that this runs in."""
    interpreter = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    projects, packages = module_folders(references)
    gaps = Gaps(policy.hidden, projects, policy.user_home)
    found = {
        allowed.path: allowed
        for root in (*SYSTEM, *interpreter, *packages, *projects)
        for allowed in opened(root, gaps)
    }
    named = [AllowedPath(path, landlock.READ) for path in policy.readable]
    writable = [AllowedPath(path, landlock.ALL) for path in (*DEVICES, *policy.writable)]
    return [*found.values(), *named, *writable]


def module_folders(references: Iterable[str]) -> tuple[list[str], list[str]]:
    """Projects (the working directory, the folders of agents' files, and where else modules come from) and folders of
    installed packages beside the interpreter's.
    """
    files = [reference.partition(":")[0] for reference in references]
    beside = [os.path.dirname(os.path.realpath(path)) for path in files if path.endswith(".py")]
    prefixes = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)]
    modules = dict.fromkeys(os.path.realpath(path) for path in sys.path if os.path.exists(path or "."))
    own = [path for path in modules if not any(_is_in(path, prefix) for prefix in prefixes)]
    packages = [path for path in own if path.endswith(INSTALLED) or not os.path.isdir(path)]
    projects = [os.path.realpath("."), *beside, *(path for path in own if path not in packages)]
    return list(dict.fromkeys(projects)), packages


def opened(path: str, gaps: Gaps) -> Iterator[AllowedPath]:
    """Rules by which a path can be read without its gaps."""
    path = os.path.realpath(path)
    if gaps.holds(path):
        return
    if not os.path.isdir(path) or not gaps.below(path):
        yield AllowedPath(path, landlock.READ)
        return
    yield AllowedPath(path, landlock.READ_DIR)
    try:
        names = sorted(os.listdir(path))
    except OSError:  # it may not be read by this user
        return
    for name in names:
        if not gaps.closes(path, name):
            yield from opened(os.path.join(path, name), gaps)
