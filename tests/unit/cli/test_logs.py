"""Logs are read from their end, and followed as they grow."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.cli.logs import follow_file, last_lines, log_files


@given(lines=st.lists(st.text("ab", max_size=5), max_size=30), number=st.integers(0, 12), chunk=st.integers(1, 20))
def test_the_last_lines_do_not_depend_on_the_chunk_size(
    lines: list[str], number: int, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("logs") / "x.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    tail, end = last_lines(path, number, chunk_bytes=chunk)
    assert tail.decode() == "".join(f"{line}\n" for line in (lines[-number:] if number else []))
    assert end == path.stat().st_size


async def test_appended_lines_follow_and_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("old\n")
    seen = asyncio.Queue[bytes]()

    async def read() -> None:
        async for chunk in follow_file(path, 4):
            seen.put_nowait(chunk)

    reading = asyncio.create_task(read())
    path.write_text("old\nnew\n")
    assert await asyncio.wait_for(seen.get(), 10) == b"new\n"
    path.write_text("cut\n")
    assert await asyncio.wait_for(seen.get(), 10) == b"cut\n"
    reading.cancel()


def test_logs_are_known_by_their_process(tmp_path: Path) -> None:
    logs, older, newer = tmp_path / "logs", tmp_path / "runs" / "older", tmp_path / "runs" / "newer"
    for folder in (logs, older, newer):
        folder.mkdir(parents=True)
    for file in (logs / "runner.log", logs / "notes.txt", older / "engine.log", newer / "engine.log"):
        file.write_text("x")
    os.utime(older / "engine.log", (1, 1))
    assert log_files(tmp_path) == {"runner": logs / "runner.log", "engine": newer / "engine.log"}
    assert log_files(tmp_path / "nothing") == {}
