"""Code of all HTTP services: a listening socket, and a uvicorn that drains."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Generator
from types import FrameType

import uvicorn

from relight.errors import RelightError
from relight.transport.keepalive import keep_alive

BACKLOG = 2048


class Server(uvicorn.Server):
    """uvicorn, except that a handled signal is not raised again, since draining is a clean end. A second signal ends
    the process at once.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None] | None = None,
        on_stopping: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and call `on_ready`."""
        await super().startup(sockets)
        if self.started and self._on_started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Call `on_stopping`, which ends endless streams, and drain."""
        if self._on_stopping:
            self._on_stopping()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second."""
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle SIGINT and SIGTERM while serving."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def listen(host: str, port: int, what: str, setting: str, error_type: type[RelightError]) -> socket.socket:
    """A listening socket, so that a port in use is an error before the service starts; port 0 takes a free one.

    Raises:
        error_type: the address is not available; the message names the setting.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sends small answers at once only on sockets that name it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keep_alive(listener)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise error_type(
            f"{what} can't listen on {host}:{port}: {error.strerror}; stop what uses it, or set another {setting}"
        ) from error
    listener.setblocking(False)
    return listener
