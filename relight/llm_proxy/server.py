"""The gateway as a process: `relight gateway`. It needs only the store service's address."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from relight.errors import ConfigError, RelightError, StackError, UnauthorizedError
from relight.llm_proxy.app import Gateway, open_gateway
from relight.llm_proxy.limits import GatewayLimits
from relight.llm_proxy.metrics import Metered
from relight.llm_proxy.provider_addresses import AddressGuard, addresses_of
from relight.settings import Settings
from relight.store.attempts.client import StoreClient
from relight.store.attempts.plain_http_client import StoreLink
from relight.transport.listening import Server, listen
from relight.transport.request_limits import LimitedHttpProtocol
from relight.types.upstreams import load_upstreams

log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 5.0
"""How long the client repeats a request; after that the waiting model call decides how long to wait."""
IDLE_SECONDS = 75
"""How long an agent's connection stays open between calls."""


def address(settings: Settings) -> tuple[str, int]:
    """Where a gateway listens by default: at the address that agents get.

    Raises:
        ConfigError: the address has no host or no port.
    """
    url = urlsplit(settings.gateway_url)
    if url.hostname is None or url.port is None:
        raise ConfigError(f"gateway_url: host and port are needed, as in http://10.0.0.7:4748; given {url.geturl()!r}")
    return url.hostname, url.port


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        StackError: the address is not available.
    """
    return listen(host, port, "the gateway", "gateway_url", StackError)


def configure(app: Gateway | Metered, drain_seconds: float) -> uvicorn.Config:
    """The configuration of uvicorn: its fastest components and no more than the gateway needs."""
    return uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(drain_seconds),
    )


async def serve(
    settings: Settings,
    host: str | None = None,
    port: int | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or cancellation; calls under way end first and are recorded.

    Raises:
        StackError: the port is in use.
        ConfigError: `gateway_url` has no host or port, the providers' file is invalid, or the store service does not
            accept the admin token.
    """
    limits = GatewayLimits(settings.gateway_request_bytes, settings.gateway_answer_bytes, settings.gateway_call_seconds)
    upstreams = load_upstreams(settings.gateway_upstreams) if settings.gateway_upstreams else []
    default = address(settings) if host is None or port is None else (host, port)
    sock = bind(host or default[0], default[1] if port is None else port)
    url = f"http://{sock.getsockname()[0]}:{sock.getsockname()[1]}"

    def announce() -> None:
        log.info("serving url=%s store=%s pid=%d", url, settings.store_url, os.getpid())
        if on_ready:
            on_ready(url)

    try:
        async with StoreLink.from_settings(settings, retry_seconds=STORE_RETRY_SECONDS) as store:
            await check_token(store)
            guard, allowed = await guard_for(settings), settings.gateway_allowed_hosts
            options: dict[str, Any] = {"guard": guard, "allowed_hosts": allowed, "pass_on": store.passed_on}
            async with open_gateway(store, settings.token_value, limits, upstreams, **options) as app:
                gc.freeze()  # what is loaded by now stays: garbage collections skip it
                config = configure(Metered(app, settings.token_value, app.engines), settings.drain_seconds)
                await drained(Server(config, announce, app.closing.set), sock)
    finally:
        sock.close()


async def guard_for(settings: Settings) -> AddressGuard:
    """Keeps providers' connections from the platform's own services."""
    addressed = (settings.temporal_address, settings.temporal_ui_url, settings.postgres_url)
    return AddressGuard(await addresses_of([settings.store_url, settings.gateway_url, *addressed]))


async def check_token(store: StoreClient) -> None:
    """Check the admin token with a request to the store; with a wrong one every agent's key would seem wrong.

    Raises:
        ConfigError: it is wrong.
    """
    try:
        await store.engines("")
    except UnauthorizedError as error:
        raise ConfigError(f"token: the store service at {store.url} does not accept it; check RELIGHT_TOKEN") from error
    except RelightError as error:
        log.warning("the store service does not answer yet url=%s reason=%r", store.url, str(error))


async def drained(server: Server, sock: socket.socket) -> None:
    """Serve; when cancelled, let calls under way end first."""
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
