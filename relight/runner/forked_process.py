"""The runner's side of a forked process: its channel, its output, its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar, get_args

import orjson
from pydantic import TypeAdapter, ValidationError

from relight.runner import frames
from relight.runner import process_messages as messages
from relight.runner.captured_output import OutputPipe
from relight.runner.process_messages import ExitReport

M = TypeVar("M")
OnMessage = Callable[[int, messages.FromAgent, int], None]
"""Takes the number of a call, a message and its size in bytes."""
_DATAGRAMS_A_TURN: Final = 16


class MessageDecoder(Generic[M]):
    """Reads and validates the messages that a process sends to the runner."""

    def __init__(self, kinds: tuple[type[M], ...]) -> None:
        self._kinds = {kind.__name__: TypeAdapter[M](kind) for kind in kinds}

    def decode(self, payload: bytes) -> tuple[int, M | None]:
        """The number and the message; None for one that is malformed.

        Raises:
            ValueError: it is no message at all.
        """
        match orjson.loads(payload):
            case [int(number), str(name), fields]:
                with suppress(KeyError, ValidationError):
                    return number, self._kinds[name].validate_python(fields)
                return number, None
            case _:
                raise ValueError("it is not a number, a name and fields")


FROM_AGENT: Final = MessageDecoder[messages.FromAgent](get_args(messages.FromAgent))


class ForkedProcess:
    """Created before the fork, so that the child's ends of the pipes can be sent with the request."""

    def __init__(self, number: int, on_message: OnMessage, kill: Callable[[int], None]) -> None:
        self.number = number
        self.pid: int | None = None
        self.output = OutputPipe()
        self._on_message = on_message
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self.forked: asyncio.Future[None] = self._loop.create_future()
        self.exited: asyncio.Future[ExitReport] = self._loop.create_future()
        self.violation: str | None = None
        self._assembler = frames.Assembler()
        self._sending = asyncio.Lock()
        self._channel, self._child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._read_some)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to send with the fork request."""
        return [self._child_end.fileno(), self.output.writer]

    def close_child_ends(self) -> None:
        """Close the child's ends: the fork server has its copies, or never will."""
        self._child_end.close()
        self.output.close_child_end()

    async def send(self, call: int, message: messages.FromRunner) -> None:
        """Send a message. It is dropped if the process has ended."""
        payload = messages.encode(call, message, orjson.OPT_NON_STR_KEYS)  # a task may have keys of any kind
        async with self._sending:
            with suppress(OSError):
                for datagram in frames.split(payload):
                    if self.exited.done():
                        break
                    await self._loop.sock_sendall(self._channel, datagram)
        self._close_channel()

    def has_forked(self, pid: int) -> None:
        self.pid = pid
        if not self.forked.done():
            self.forked.set_result(None)

    def has_exited(self, report: ExitReport) -> None:
        """The process has ended: read the remaining messages and close."""
        if self.exited.done():
            return
        for _ in range(64):
            if not self._read_some():
                break
        self._loop.remove_reader(self._channel)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes a sender
        self.close_child_ends()
        self.output.close()
        if not self.forked.done():
            self.forked.set_result(None)
        self.exited.set_result(report)
        self._close_channel()

    def _close_channel(self) -> None:
        if self.exited.done() and not self._sending.locked():
            self._channel.close()

    def _read_some(self) -> bool:
        """Read at most a few datagrams, so that one process does not block the others. False: no more now."""
        for _ in range(_DATAGRAMS_A_TURN):
            try:
                datagram = self._channel.recv(frames.MAX_DATAGRAM_BYTES + 1)
            except (BlockingIOError, ConnectionError):
                return False
            if not datagram:
                self._loop.remove_reader(self._channel)
                return False
            self._take(datagram)
        return True

    def _take(self, datagram: bytes) -> None:
        if self.violation is not None:
            return
        try:
            payload = self._assembler.feed(datagram)
            if payload is None:
                return
            call, message = FROM_AGENT.decode(payload)
        except (frames.FrameError, ValueError) as error:
            self.violation = f"the agent's process wrote an invalid message to its result channel: {error}"
            self.kill()
        else:
            self._on_message(call, message or messages.SpanMessage(None), len(payload))

    def kill(self) -> None:
        """Request the kill of its process group; `exited` is set when it has ended."""
        self._kill(self.number)
