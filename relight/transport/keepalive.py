"""TCP keepalive, which detects a peer that is gone without closing: a host that lost power, a path that drops packets.

By default the kernel detects this after two hours on an idle connection, and after a quarter of an hour otherwise. A
peer that exists and does not answer is not detected: callers have timeouts for that.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

IDLE_SECONDS: Final = 10
INTERVAL_SECONDS: Final = 5
PROBES: Final = 4
GONE_SECONDS: Final = IDLE_SECONDS + INTERVAL_SECONDS * PROBES
"""A peer that has acknowledged nothing for this time counts as gone, whether data or only probes were sent."""
OPTIONS: Final = {
    "TCP_KEEPIDLE": IDLE_SECONDS,
    "TCP_KEEPINTVL": INTERVAL_SECONDS,
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": GONE_SECONDS * 1000,
}


def keep_alive(connection: Any) -> None:
    """For TCP sockets, or objects with their interface; others stay as is. A listener's connections inherit it."""
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in OPTIONS.items():
        if hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def keep_transport_alive(transport: asyncio.BaseTransport) -> None:
    """For the socket of a transport."""
    keep_alive(transport.get_extra_info("socket"))


def alive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for one of `getaddrinfo`'s answers: aiohttp's `socket_factory`."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    keep_alive(made)
    return made
