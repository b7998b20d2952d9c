"""`relight logs`: the logs of the embedded stack's processes, or the output of a rollout's attempts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from relight.cli import output
from relight.cli.store_reader import StoreReader
from relight.errors import ConfigError, NotFoundError
from relight.retrying import Every

EPILOG = """\b
Examples:
  relight logs
  relight logs gpu-worker -f
  relight logs engine
  relight logs calculator-1-s0003-g01-i5"""
POLL_SECONDS = 0.3
CHUNK_BYTES = 1 << 16


async def logs(
    name: Annotated[str | None, typer.Argument(help="A process of the stack, or a rollout.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing what is appended.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Number of last lines to begin with.")] = 100,
) -> None:
    """Print the log of a process of the stack, or the output of a rollout's attempts; without a name, list the logs.

    `engine` and `trainer` are those of the run that this host trained last.
    """
    known = log_files(output.settings().home)
    if name is None:
        _list(known)
    elif name in known:
        await _print(known[name], lines, follow)
    else:
        await _print_attempts(name, sorted(known))


def log_files(home: Path) -> dict[str, Path]:
    """The logs of the embedded stack by name, with those of the newest engine and trainer."""
    known = {file.stem: file for file in sorted((home / "logs").glob("*.log"))}
    for name in ("engine", "trainer"):
        if found := list((home / "runs").glob(f"*/{name}.log")):
            known[name] = max(found, key=lambda file: file.stat().st_mtime)
    return known


def last_lines(path: Path, number: int, chunk_bytes: int = CHUNK_BYTES) -> tuple[bytes, int]:
    """The last lines of a file, and its size; reads no more of it than needed."""
    with path.open("rb") as file:
        end = position = file.seek(0, 2)
        tail = b""
        while position > 0 and tail.count(b"\n") <= number:
            start = max(0, position - chunk_bytes)
            file.seek(start)
            tail = file.read(position - start) + tail
            position = start
    kept = tail.splitlines(keepends=True)[-number:] if number else []
    return b"".join(kept), end


async def follow_file(path: Path, position: int) -> AsyncGenerator[bytes]:
    """What is appended after `position`; starts at the beginning if the file was truncated."""
    async for _ in Every(POLL_SECONDS):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < position:
                position = 0
            file.seek(position)
            while chunk := file.read(CHUNK_BYTES):
                position += len(chunk)
                yield chunk


def _list(known: dict[str, Path]) -> None:
    if output.wants_json():
        for name, path in known.items():
            output.emit({"name": name, "path": str(path), "size_bytes": path.stat().st_size})
        return
    if not known:
        output.say("no logs; the embedded stack writes them under its home (`relight config` shows where)")
    for name, path in known.items():
        output.say(f"{name:<14} {path.stat().st_size:>10} bytes  {path}")


async def _print(path: Path, number: int, follow: bool) -> None:
    tail, position = last_lines(path, number)
    _write(tail)
    if follow:
        with suppress(asyncio.CancelledError):  # Ctrl-C ends it
            async for chunk in follow_file(path, position):
                _write(chunk)


def _write(content: bytes) -> None:
    if not output.emitted(*({"line": line} for line in content.decode(errors="replace").splitlines())):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


async def _print_attempts(rollout_id: str, known: list[str]) -> None:
    try:
        async with StoreReader.from_settings(output.settings()) as reader:
            rollout = await reader.rollout(rollout_id)
    except NotFoundError as error:
        raise ConfigError(
            f"{rollout_id!r} is neither a rollout nor a process of the stack (known: {', '.join(known) or 'none'})"
        ) from error
    for attempt in rollout.tries:
        shown = {"attempt_id", "sequence_id", "status", "output"}
        if not output.emitted(attempt.model_dump(mode="json", include=shown)):
            output.say(f"--- attempt {attempt.sequence_id}: {attempt.failure_class or attempt.status}")
            output.say(attempt.output.rstrip() or "(no output)")
