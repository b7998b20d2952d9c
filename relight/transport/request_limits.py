"""uvicorn's HTTP protocol with limits on what a client may send, and how slowly, before a request is complete.

uvicorn itself keeps a request's headers however many there are, and waits for the rest of a request for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; more gets 431."""
CHECK_SECONDS = 2.0
MOST_CHECKS = 5
"""A head must be complete within 10 to 12 s, else it gets 408; a body must go on within that time, else the connection
is closed. Checks are counted, not seconds, so that no connection is closed because the service itself stood still."""


class HeadTooLargeError(Exception):
    """A request's line and headers are longer than MAX_HEAD_BYTES."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0
    """What has come of a head that is not complete."""
    _in_head = True
    _in_body = False
    _checks = 0
    """Since the head began, or since the last part of the body."""
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, check_seconds: float = CHECK_SECONDS, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check_seconds = check_seconds

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._check_seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the checks."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came in; count it if it is a part of a head that is still not complete."""
        if self._in_body:
            self._checks = 0
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, "the request line and headers are longer than 64 KB")

    def on_message_begin(self) -> None:
        """Begin to wait for the end of a request's headers."""
        super().on_message_begin()
        self._in_head, self._head_bytes, self._checks = True, 0, 0

    def on_headers_complete(self) -> None:
        """Start the request, and wait for its body.

        Raises:
            HeadTooLargeError: the head is too long; the parser then calls `send_400_response`.
        """
        self._head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLargeError
        self._in_head, self._in_body, self._checks = False, True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete: nothing is awaited until the next one begins."""
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser refuses."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, "the request line and headers are longer than 64 KB")
        else:
            super().send_400_response(msg)

    def _check(self) -> None:
        self._timer = self.loop.call_later(self._check_seconds, self._check)
        self._checks += 1
        if self._checks <= MOST_CHECKS or self.transport.is_closing():
            return
        if self._in_head and self._head_bytes:
            self._refuse(408, "the request line and headers did not come within 10 s")
        elif self._in_head or (self._in_body and not self._service_waits()):
            self.transport.close()

    def _service_waits(self) -> bool:
        """Whether the client may not send: the service does not read its body, or has not asked for it."""
        return self.flow.read_paused or self.cycle.waiting_for_100_continue

    def _refuse(self, status: int, message: str) -> None:
        head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            message
        )
        self.transport.write(STATUS_LINE[status] + head + message.encode())
        self.transport.close()
