"""Addresses that a provider may not have: the platform's own services, and link-local ones, where clouds give a machine
its credentials. They are compared when a connection is made, so a name that leads there is refused too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from relight.transport.keepalive import alive_socket

METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254")})
"""A cloud's address for the same purpose that is not link-local."""
LOOPBACK = "loopback"
Address = tuple[str, int]
"""IP address and port; all addresses of loopback count as one."""


class ForbiddenAddressError(OSError):
    """A provider's host leads to an address that it may not have."""


class AddressGuard:
    """Makes the sockets of connections to providers."""

    def __init__(self, own: Iterable[Address] = ()) -> None:
        self._own = frozenset(own)

    def open(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for one of `getaddrinfo`'s answers: aiohttp's `socket_factory`.

        Raises:
            ForbiddenAddressError: no provider may be there.
        """
        host, port = address[4][:2]
        found = _parsed(host)
        if found.is_link_local or found in METADATA or (_canonical(found), port) in self._own:
            raise ForbiddenAddressError(
                f"{host}:{port} is link-local or the platform's own; name the host in gateway_allowed_hosts to allow it"
            )
        return alive_socket(address)


async def addresses_of(urls: Iterable[str | None]) -> frozenset[Address]:
    """The addresses of services, given as URLs or as `host:port`. A name that is not known leads nowhere."""
    loop = asyncio.get_running_loop()
    found: set[Address] = set()
    for url in filter(None, urls):
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port or {"https": 443, "http": 80, "postgresql": 5432}.get(parts.scheme)
        if parts.hostname is None or port is None:
            continue
        try:
            answers = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except OSError:
            continue
        found |= {(_canonical(_parsed(str(answer[4][0]))), port) for answer in answers}
    return frozenset(found)


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address without its zone; IPv4 in IPv6's notation as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _canonical(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return LOOPBACK if address.is_loopback or address.is_unspecified else str(address)
