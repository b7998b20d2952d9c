"""The gateway as a process: `relight gateway`. It needs the store service's address, and nothing of the engines."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from relight.errors import StackError
from relight.llm_proxy.app import Gateway, open_gateway
from relight.settings import Settings
from relight.store.client import StoreClient

log = logging.getLogger(__name__)

GRACE_SECONDS = 20
"""How long calls under way may still take when the gateway is told to end."""
STORE_PATIENCE_SECONDS = 5.0
"""How long the client itself repeats a request; after that the call that needs it decides how long to wait on."""
IDLE_SECONDS = 75
"""How long an agent's connection stays open between calls."""


class Server(uvicorn.Server):
    """Ends on SIGTERM and SIGINT without raising them again, so that what is captured is still recorded."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; with port 0 the system picks one.

    Raises:
        StackError: the address can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise StackError(
            f"gateway: can't listen on {host}:{port}: {error.strerror}; free the port or choose another"
        ) from error
    sock.setblocking(False)
    return sock


def configure(app: Gateway) -> uvicorn.Config:
    """uvicorn's fastest parts, and nothing that a gateway doesn't need."""
    return uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


async def serve(settings: Settings, host: str, port: int, on_ready: Callable[[str, int], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; then let calls under way end, and record what they brought.

    Raises:
        StackError: the port is taken.
    """
    sock = bind(host, port)
    bound_host, bound_port = sock.getsockname()[:2]
    async with (
        StoreClient.from_settings(settings, patience_seconds=STORE_PATIENCE_SECONDS) as store,
        open_gateway(store, settings.token_value) as app,
    ):
        log.info("gateway listens host=%s port=%d store=%s", bound_host, bound_port, settings.store_url)
        if on_ready:
            on_ready(bound_host, bound_port)
        await Server(configure(app)).serve(sockets=[sock])
    log.info("gateway ended")
