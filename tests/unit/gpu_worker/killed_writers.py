"""Kills writers of checkpoints at a hundred moments: `python -m tests.unit.gpu_worker.killed_writers FOLDER`.

A process of its own, so that it may fork without threads: each writer is a fork, killed after its share of the time
that a whole save takes, and what it leaves is looked at as a reader would. One that was faster does not count, and
shows that a save takes less than was thought.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson

from relight.errors import CheckpointError
from relight.gpu_worker.complete_directories import commit, temporary_name, verify, write_manifest
from relight.gpu_worker.object_storage import ObjectStorage

KILLS = 100
TRIES = 400
FASTER = 0.95
"""Part of the usual duration that is left after a writer was done before its time."""
FILES = {f"{number}.safetensors": bytes([number]) * 50_000 for number in range(4)}


def save(final: Path) -> None:
    """As the trainer does."""
    temporary = temporary_name(final)
    temporary.mkdir(parents=True)
    for name, content in FILES.items():
        (temporary / name).write_bytes(content)
    write_manifest(temporary, {"version": 1})
    commit(temporary, final)


def killed(do: Callable[[], object], after_seconds: float) -> bool:
    """Whether a writer was still at it after so long, and died."""
    pid = os.fork()
    if pid == 0:
        do()
        os._exit(0)
    time.sleep(after_seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def duration(do: Callable[[], object]) -> float:
    """Seconds that a writer takes, in a fork as the others are."""
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        do()
        os._exit(0)
    os.waitpid(pid, 0)
    return time.monotonic() - began


def state_of(directory: Path) -> str:
    """What a reader makes of it: whole, refused, or torn and yet accepted, which must never be."""
    try:
        verify(directory)
    except CheckpointError:
        return "refused"
    return "whole" if all((directory / name).read_bytes() == content for name, content in FILES.items()) else "TORN"


def kill_saves(folder: Path) -> Counter[str]:
    """Of savers to a directory."""
    found: Counter[str] = Counter()
    usual = min(duration(partial(save, folder / "usual" / str(number))) for number in range(3))
    for number in range(TRIES):
        final = folder / "saves" / str(number)
        if not killed(partial(save, final), usual * found["killed"] / KILLS):
            usual *= FASTER
            continue
        found["killed"] += 1
        found[state_of(final)] += 1
        save(final)  # the next try is not hindered by what is left
        found[f"then {state_of(final)}"] += 1
        if found["killed"] == KILLS:
            break
    return found


def kill_uploads(folder: Path) -> Counter[str]:
    """Of uploaders to a storage that has neither renames nor whole files at once."""
    found: Counter[str] = Counter()
    source = folder / "source"
    save(source)
    storage = ObjectStorage(f"local://{folder / 'bucket'}")
    usual = min(duration(partial(storage.upload, source, f"usual/{number}")) for number in range(3))
    for number in range(TRIES):
        name, copy = f"run/v1-f{number}/export", folder / "copies" / str(number)
        if not killed(partial(storage.upload, source, name), usual * found["killed"] / KILLS):
            usual *= FASTER
            continue
        found["killed"] += 1
        found[downloaded(storage, name, copy)] += 1
        shutil.rmtree(copy, ignore_errors=True)
        storage.upload(source, name)
        found[f"then {downloaded(storage, name, copy)}"] += 1
        if found["killed"] == KILLS:
            break
    return found


def downloaded(storage: ObjectStorage, name: str, copy: Path) -> str:
    try:
        storage.download(name, copy)
    except CheckpointError:
        return "refused"
    return state_of(copy)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(orjson.dumps({"saves": kill_saves(folder), "uploads": kill_uploads(folder)}).decode())
