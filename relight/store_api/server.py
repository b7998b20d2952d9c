"""The store service as a process: `relight store`."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable
from functools import partial

import uvicorn
import uvloop

from relight.errors import RelightError, StoreError
from relight.observability.redaction import Redactor
from relight.observability.reporting import Doing, keep_reporting, own_report
from relight.retrying import Every, logged
from relight.settings import Settings
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database, connect_database
from relight.store.maintenance.partitions import ensure_partitions
from relight.store.maintenance.retention import Policy, retain
from relight.store.queue.sweeper import keep_sweeping
from relight.store_api.app import create_app
from relight.store_api.served import Requests
from relight.transport.listening import Server, listen
from relight.types.wire import WorkerReport

log = logging.getLogger(__name__)
PARTITION_SECONDS = 3600.0
DRAIN_SECONDS = 10
POOL_SIZE = 12
MAX_REQUESTS = 2000
"""Most connections and requests at once; more get 503."""


def bind(host: str, port: int, what: str) -> socket.socket:
    """A listening socket, so that a port in use is an error before the service starts.

    Raises:
        StoreError: the address is not available.
    """
    return listen(host, port, what, "store_url", StoreError)


async def serve(
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = 4747,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; requests under way end first. Port 0 takes a free one.

    Raises:
        StoreError: the port is in use.
        ConfigError: no Postgres or no token is set.
        PostgresError: Postgres can't be reached.
    """
    listener = bind(host, port, "the store service")
    try:
        database = await connect_database(settings, max_size=POOL_SIZE)
        try:
            await _serve(settings, database, listener, on_ready, stop)
        finally:
            await database.close()
    finally:
        listener.close()


def run(settings: Settings, host: str = "127.0.0.1", port: int = 4747) -> None:
    """`serve` on uvloop, for a process that does nothing else."""
    uvloop.run(serve(settings, host, port))


async def _serve(
    settings: Settings,
    database: Database,
    listener: socket.socket,
    on_ready: Callable[[str], None] | None,
    stop: asyncio.Event | None,
) -> None:
    redactor = Redactor(settings.redact_patterns, [settings.token_value or ""])
    store = await PostgresStore.create(database, settings.gateway_url, redactor)
    await ensure_partitions(database)
    await database.execute("forget_strange_events")
    url = f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}"
    app = create_app(store, database, token=settings.token_value, redactor=redactor, gateway_url=settings.gateway_url)
    report = partial(_own_report, url, app.state.requests)
    await store.register_worker(report())
    config = uvicorn.Config(
        app,
        http="httptools",
        access_log=False,
        log_config=None,
        limit_concurrency=MAX_REQUESTS,
        timeout_graceful_shutdown=math.ceil(min(DRAIN_SECONDS, settings.drain_seconds)),
    )
    server = Server(config, lambda: _announce(url, on_ready), app.state.streams.end)
    async with asyncio.TaskGroup() as group:
        side_tasks = [
            group.create_task(_keep_house(database, Policy(settings.retention_days, settings.retention_bytes))),
            group.create_task(keep_reporting(store.register_worker, report, Doing())),
            group.create_task(keep_sweeping(database)),
            group.create_task(_obey(stop, server)),
        ]
        await server.serve(sockets=[listener])
        for task in side_tasks:
            task.cancel()


def _announce(url: str, on_ready: Callable[[str], None] | None) -> None:
    log.info("serving url=%s pid=%d", url, os.getpid())
    if on_ready:
        on_ready(url)


async def _obey(stop: asyncio.Event | None, server: Server) -> None:
    if stop:
        await stop.wait()
        server.should_exit = True


async def _keep_house(database: Database, policy: Policy) -> None:
    """Create partitions for the coming days, and drop days by the retention policy, every hour."""
    async for _ in Every(PARTITION_SECONDS, at_once=False):
        await keep_house_once(database, policy)


async def keep_house_once(database: Database, policy: Policy) -> None:
    """The hourly maintenance; if Postgres does not answer or is busy, it is done an hour later."""
    with logged(log, "partitions error=%s", RelightError):  # until then rows go to the default partitions
        await ensure_partitions(database)
    if policy == Policy():
        return
    with logged(log, "retention error=%s", RelightError):
        for day in await retain(database, policy):
            if day.action == "dropped":
                log.info("dropped day=%s size_bytes=%d reason=%s", day.day, day.size_bytes, day.reason)


def _own_report(url: str, requests: Requests) -> WorkerReport:
    """That this service is there, and how many requests it served since it last said so."""
    report = own_report("store", Doing.counted("requests", requests.take()))
    return report.model_copy(update={"heartbeat_stats": {"url": url}})
