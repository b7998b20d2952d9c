"""The store service on a free port, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn

from relight.store.database import Database
from relight.store.interface import AttemptStore
from relight.store_api.app import create_app
from relight.store_api.server import Server, bind

TOKEN = "admin-token"


@asynccontextmanager
async def store_service(
    store: AttemptStore,
    database: Database,
    *,
    port: int = 0,
    patience_seconds: float = 2.0,
    max_body_bytes: int = 2**26,
) -> AsyncGenerator[str]:
    """Serve a store; yields its URL."""
    app = create_app(store, database, token=TOKEN, patience_seconds=patience_seconds, max_body_bytes=max_body_bytes)
    listener = bind("127.0.0.1", port, "the store service")
    started = asyncio.Event()
    server = Server(uvicorn.Config(app, http="httptools", access_log=False, log_config=None), started.set)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[listener]))
        await started.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
