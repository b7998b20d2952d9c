"""Messages between runner and agent process: any length, over datagrams that arrive whole or not at all.

The channel is a SOCK_SEQPACKET pair, so a process that is killed in the middle of a message tears nothing for the
others that write to the same channel (children that an agent forked), and threads need no lock. Each datagram names
its sender and message; the reader puts them together. It trusts neither: too much of anything is a FrameError.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

_HEADER: Final = struct.Struct("<IIB")
CHUNK_BYTES: Final = 60 * 1024
MAX_DATAGRAM_BYTES: Final = CHUNK_BYTES + _HEADER.size
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Longest message that an agent process may send."""
MAX_REQUEST_BYTES: Final = 512 * 1024 * 1024
"""Longest message that a runner may send; a sanity limit."""

_numbers = itertools.count()


class FrameError(Exception):
    """The other side sent an invalid message."""


def split(payload: bytes) -> Iterator[bytes]:
    """The datagrams of one message."""
    sender, number, view = os.getpid(), next(_numbers) & 0xFFFFFFFF, memoryview(payload)
    for start in range(0, max(len(payload), 1), CHUNK_BYTES):
        last = start + CHUNK_BYTES >= len(payload)
        yield _HEADER.pack(sender, number, last) + view[start : start + CHUNK_BYTES]


def send(channel: socket.socket, payload: bytes) -> None:
    """Send one message over a blocking channel."""
    if len(payload) <= CHUNK_BYTES:
        channel.send(_HEADER.pack(os.getpid(), next(_numbers) & 0xFFFFFFFF, True) + payload)
        return
    if len(payload) > MAX_MESSAGE_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes is longer than {MAX_MESSAGE_BYTES}")
    for datagram in split(payload):
        channel.send(datagram)


class Assembler:
    """Assembles messages from datagrams."""

    def __init__(self, limit_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._parts: dict[tuple[int, int], list[bytes]] = {}
        self._held_bytes = 0

    def feed(self, datagram: bytes) -> bytes | None:
        """The message that this datagram completes, if it does."""
        if not _HEADER.size <= len(datagram) <= MAX_DATAGRAM_BYTES:
            raise FrameError(f"a datagram of {len(datagram)} bytes")
        sender, number, last = _HEADER.unpack_from(datagram)
        chunk = datagram[_HEADER.size :]
        if last and not self._parts:
            return chunk
        return self._join((sender, number), chunk, bool(last))

    def _join(self, key: tuple[int, int], chunk: bytes, last: bool) -> bytes | None:
        parts = self._parts.setdefault(key, [])
        parts.append(chunk)
        self._held_bytes += len(chunk) + _HEADER.size
        if self._held_bytes > 2 * self._limit_bytes:
            raise FrameError(f"more than {2 * self._limit_bytes} bytes of unfinished messages")
        if not last:
            return None
        message = b"".join(self._parts.pop(key))
        self._held_bytes -= len(message) + _HEADER.size * len(parts)
        return message


def receive(channel: socket.socket) -> bytes | None:
    """Wait for one message on a blocking channel; None if the other side has closed it."""
    assembler = Assembler(MAX_REQUEST_BYTES)
    while datagram := channel.recv(MAX_DATAGRAM_BYTES):
        if (message := assembler.feed(datagram)) is not None:
            return message
    return None
