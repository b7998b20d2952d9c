"""One rank of a trainer: its process, and the socket for commands and answers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from relight.processes.child import ChildProcess

_LINE_LIMIT_BYTES = 64 * 2**20


class Rank:
    """One rank: its process and its socket."""

    def __init__(self, child: ChildProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Rank:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            command = (*argv, "--socket", str(theirs.fileno()))
            passed = (theirs.fileno(),)
            child = await ChildProcess.start(command, environment=environment, log=log, pass_fds=passed, reaped=True)
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LINE_LIMIT_BYTES)
        return cls(child, reader, writer)

    async def send(self, line: bytes) -> None:
        self._writer.write(line)
        await self._writer.drain()

    async def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            EOFError: the rank is gone.
        """
        try:
            line = await self._reader.readline()
        except ConnectionError as error:
            raise EOFError from error
        if not line.endswith(b"\n"):
            raise EOFError
        return orjson.loads(line)

    def close(self) -> None:
        self._writer.close()


def default_threads() -> int:
    """Threads of torch in a trainer: two, or as many as there are cores."""
    return min(2, len(os.sched_getaffinity(0)))


def rank_environment(rank: int, ranks: int, threads: int) -> dict[str, str]:
    """The variables of torchrun that verl reads; the rendezvous is a file, so address and port are unused."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait make a step five times longer on cores that others use too.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "TOKENIZERS_PARALLELISM": "false",
    }
