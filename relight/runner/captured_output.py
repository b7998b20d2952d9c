"""Captures the output of a process: its size and its last 64 KiB.

The pipe is drained continuously, so a process that prints a gigabyte fills neither disk nor memory.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from relight.emitter.attributes import clean_text

TAIL_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 64 * 1024


class OutputTail:
    """The end of a stream of bytes."""

    def __init__(self, limit_bytes: int = TAIL_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self.total_bytes = 0

    def write(self, data: bytes) -> None:
        self.total_bytes += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._limit_bytes:
            del self._kept[: -self._limit_bytes]

    def text(self) -> str:
        """The captured end as text that JSON and Postgres can store; it begins with a whole character."""
        kept = bytes(self._kept[-self._limit_bytes :])
        if len(kept) < self.total_bytes:
            while kept and kept[0] & 0xC0 == 0x80:
                kept = kept[1:]
        return clean_text(kept.decode("utf-8", "replace"))


class OutputPipe:
    """A pipe whose writing end goes to a child, and whose reading end is drained into a tail."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self.tail = OutputTail()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def close_child_end(self) -> None:
        """Close this process' copy of the writing end; may be called twice."""
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1

    def _read(self) -> bool:
        try:
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self.tail.write(data)
        else:
            self._loop.remove_reader(self._reader)  # the end of it
        return bool(data)

    def close(self) -> None:
        """Read what is in the pipe and close it. A process that still writes to it gets a broken pipe."""
        if self._closed:
            return
        self._closed = True
        self.close_child_end()
        for _ in range(64):
            if not self._read():
                break
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
