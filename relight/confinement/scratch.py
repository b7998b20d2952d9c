"""Scratch folders: where agents write. Each process that is forked for agents has one, emptied with its end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from relight.processes.common_variables import CACHES

IMPORT: Final = "import"
"""The folder of the fork server itself; attempts can read it."""
TEMPORARY: Final = "tmp"
XDG: Final = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "XDG_RUNTIME_DIR": TEMPORARY,
}


def environment(folder: str) -> dict[str, str]:
    """The variables that lead a program to write to this folder."""
    home = {"HOME": folder, **{name: f"{folder}/{subfolder}" for name, subfolder in XDG.items()}}
    return home | dict.fromkeys(("TMPDIR", "TMP", "TEMP"), f"{folder}/{TEMPORARY}")


def kept_caches(own: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Variables of the user's caches and packages that agents reach at the allowed paths, although HOME changes."""
    user_home = own.get("HOME", "")
    found = {name: own.get(name) or f"{user_home}/{subfolder}" for name, subfolder in CACHES.items()}
    kept = {name: path for name, path in found.items() if any(Path(path).resolve().is_relative_to(a) for a in allowed)}
    return {"PYTHONUSERBASE": f"{user_home}/.local"} | kept if user_home else kept


def make(folder: str) -> None:
    """Make a scratch folder that only its user can enter."""
    os.makedirs(f"{folder}/{TEMPORARY}", mode=0o700, exist_ok=True)


def use(folder: str) -> None:
    """Have this process, and what it starts, write to this folder."""
    os.environ.update(environment(folder))
    tempfile.tempdir = None  # it may have been chosen before


def empty(folder: str) -> None:
    """Remove what is in a folder, whatever permissions were taken from it, but not the folder itself."""
    with suppress(FileNotFoundError):
        os.chmod(folder, 0o700)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _remove_folder(entry.path)
            else:
                os.unlink(entry.path)


def remove(folder: str) -> None:
    """Remove a folder with all in it."""
    empty(folder)
    with suppress(OSError):
        os.rmdir(folder)


def _remove_folder(path: str) -> None:
    try:
        os.rmdir(path)  # most are empty
    except OSError:
        for folder in _folders(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)


def _folders(path: str) -> Iterator[str]:
    """The folders in a tree, each before what is in it is listed."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        yield folder
        with suppress(OSError):
            waiting += [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]


def size(folder: str, limit_bytes: int) -> int:
    """Bytes on disk below a folder; it stops counting above the limit."""
    total, waiting = 0, [folder]
    while waiting and total <= limit_bytes:
        with suppress(OSError):
            for entry in os.scandir(waiting.pop()):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return total
