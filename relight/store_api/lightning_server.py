"""0.3's `LightningStoreServer`: a store in memory, served to other processes by a thread of this one."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from socket import socket
from urllib.parse import quote

from pydantic import SecretStr

from relight.errors import ConfigError
from relight.settings import load_settings
from relight.store.base import LightningStore
from relight.store.memory.lightning import InMemoryLightningStore
from relight.store_api.server import bind, serve_memory
from relight.types.store import LightningStoreCapabilities


class LightningStoreServer(InMemoryLightningStore):
    """A store in memory, and what serves it; called directly it is a store over the same tables.

    Other processes reach it by `LightningStoreClient(server.endpoint)`: the address holds the token.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        token: str | None = None,
        gateway_url: str | None = None,
    ) -> None:
        """A server that `start` starts. Without a port it takes a free one, without a token the settings' or a new one.

        Raises:
            ConfigError: the store is not in memory.
        """
        if not isinstance(store, InMemoryLightningStore):
            raise ConfigError(
                f"LightningStoreServer serves an InMemoryLightningStore, given {type(store).__name__}; "
                "a store on Postgres is served by `relight store`"
            )
        super().__init__(store.tables)
        self.host, self.port = host, port or 0
        settings = load_settings(token=token, gateway_url=gateway_url)
        self._settings = settings.model_copy(update={"token": settings.token or SecretStr(secrets.token_urlsafe())})
        self._served = store
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] | None = None

    @property
    def endpoint(self) -> str:
        """The address, with the token."""
        return f"http://relight:{quote(self._settings.token_value or '', safe='')}@{self.host}:{self.port}"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The capabilities of the store."""
        return super().capabilities | {"otlp_traces": True}

    def otlp_traces_endpoint(self) -> str:
        """URL that spans are exported to; the token goes with them as a bearer's."""
        return f"http://{self.host}:{self.port}/v1/traces"

    async def start(self) -> None:
        """Serve from now on; returns when requests are taken.

        Raises:
            StoreError: the port is in use.
        """
        if self._thread:
            return
        listener = bind(self.host, self.port, "the store")
        self.port = listener.getsockname()[1]
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(listener, ready), name="relight-store-server", daemon=True
        )
        self._thread.start()
        await asyncio.wrap_future(ready)

    async def stop(self) -> None:
        """Stop serving; requests under way end first. The store keeps its rows."""
        thread, self._thread = self._thread, None
        if thread and self._end:
            self._end()
            await asyncio.to_thread(thread.join)

    async def aclose(self) -> None:
        """Stop serving, and stop the periodic checks of deadlines."""
        await self.stop()
        await super().aclose()

    def _run(self, listener: socket, ready: Future[None]) -> None:
        try:
            asyncio.run(self._serve(listener, ready))
        except BaseException as error:  # whatever it is, `start` raises it
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, listener: socket, ready: Future[None]) -> None:
        stop = asyncio.Event()
        self._end = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        with closing(listener):
            await serve_memory(self._settings, self._served, listener, lambda _: ready.set_result(None), stop)
