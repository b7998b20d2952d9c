"""TCP that notices a peer which is gone without closing: a host that lost power, a path that drops packets.

The kernel alone would wait for two hours where nothing is sent, and a quarter of an hour where something is. It can't
notice a peer that is there and doesn't answer: callers have timeouts for that.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

IDLE_SECONDS: Final = 10
INTERVAL_SECONDS: Final = 5
PROBES: Final = 4
GONE_SECONDS: Final = IDLE_SECONDS + INTERVAL_SECONDS * PROBES
"""A peer that has acknowledged nothing for so long is gone: whether something was sent to it, or only probes."""
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
