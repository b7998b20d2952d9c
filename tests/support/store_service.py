"""The store service on a free port, in this process.

uvicorn's protocol without uvicorn's server, whose start and end take a few tenths of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from relight.observability.redaction import Redactor
from relight.store.attempts.base import AttemptStore
from relight.store.database import Database
from relight.store.memory.lightning import InMemoryLightningStore
from relight.store_api.app import aclose, create_app
from relight.store_api.backends import Backend, MemoryBackend, PostgresBackend
from relight.store_api.server import bind

TOKEN = "admin-token"


@asynccontextmanager
async def store_service(
    store: AttemptStore,
    database: Database,
    *,
    port: int = 0,
    retry_seconds: float = 2.0,
    max_body_bytes: int = 2**26,
    gateway_url: str | None = None,
    prepare: Callable[[FastAPI], None] | None = None,
) -> AsyncGenerator[str]:
    """Serve a store on Postgres; yields its URL."""
    backend = PostgresBackend(store, database, Redactor(secrets=[TOKEN]))
    limits: dict[str, Any] = {"retry_seconds": retry_seconds, "max_body_bytes": max_body_bytes}
    async with serving(backend, port=port, gateway_url=gateway_url, prepare=prepare, **limits) as url:
        yield url


@asynccontextmanager
async def memory_service(
    store: InMemoryLightningStore, gateway_url: str = "http://gateway", **limits: Any
) -> AsyncGenerator[str]:
    """Serve a store in memory; yields its URL."""
    backend = MemoryBackend(store, gateway_url, Redactor(secrets=[TOKEN]))
    async with serving(backend, gateway_url=gateway_url, **limits) as url:
        yield url


@asynccontextmanager
async def serving(
    backend: Backend, *, port: int = 0, prepare: Callable[[FastAPI], None] | None = None, **options: Any
) -> AsyncGenerator[str]:
    """Serve a store, after its app was prepared; yields its URL."""
    app = create_app(backend, token=TOKEN, **options)
    if prepare:
        prepare(app)
    config = uvicorn.Config(app, http="httptools", access_log=False, log_config=None)
    config.load()
    state = ServerState()
    listener = bind("127.0.0.1", port, "the store service")
    protocol: Any = config.http_protocol_class  # asyncio.Protocol, of which uvicorn makes what it needs
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), sock=listener
    )
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        app.state.ending.set()
        for connection in list(state.connections):
            connection.shutdown()
        while state.tasks:
            await asyncio.wait(state.tasks)
        await aclose(app)
