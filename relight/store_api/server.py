"""The store service as a process: `relight store`."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from relight.errors import RelightError, StoreError
from relight.observability.process_reports import REPORT_SECONDS, Doing, keep_reporting, own_report
from relight.observability.redaction import Redactor
from relight.retrying import Every, logged
from relight.settings import Settings
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database, opened_database
from relight.store.maintenance.partitions import ensure_partitions
from relight.store.maintenance.retention import RetentionPolicy, retain
from relight.store.memory.lightning import PERIOD_SECONDS, InMemoryLightningStore
from relight.store.queue.sweeper import keep_sweeping
from relight.store_api.app import create_app
from relight.store_api.backends import Backend, MemoryBackend, PostgresBackend
from relight.store_api.request_counter import Requests
from relight.transport.listening import Server, listen
from relight.transport.request_limits import LimitedHttpProtocol
from relight.types.wire import WorkerReport

log = logging.getLogger(__name__)
PARTITION_SECONDS = 3600.0
DRAIN_SECONDS = 10
POOL_SIZE = 12


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
    memory: bool = False,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    report_seconds: tuple[float, float] = REPORT_SECONDS,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; requests under way end first. Port 0 takes a free one.

    With `memory` the store lasts as long as the call, and needs no Postgres.

    Raises:
        StoreError: the port is in use.
        ConfigError: no Postgres or no token is set.
        PostgresError: Postgres can't be reached.
    """
    with closing(bind(host, port, "the store service")) as listener:
        if memory:
            await serve_memory(settings, InMemoryLightningStore(), listener, on_ready, stop)
            return
        async with opened_database(settings, max_size=POOL_SIZE) as database:
            await _serve_postgres(settings, database, listener, on_ready, stop, report_seconds)


async def _serve_postgres(
    settings: Settings,
    database: Database,
    listener: socket.socket,
    on_ready: Callable[[str], None] | None,
    stop: asyncio.Event | None,
    report_seconds: tuple[float, float],
) -> None:
    redactor = _redactor(settings)
    store = await PostgresStore.create(database, settings.gateway_url, redactor)
    await ensure_partitions(database)
    await database.execute("drop_foreign_events")
    app = _app(settings, PostgresBackend(store, database, redactor))
    report = partial(_own_report, _url(listener), app.state.requests)
    await store.register_worker(report())
    side_tasks = (
        _maintain(database, RetentionPolicy(settings.retention_days, settings.retention_bytes)),
        keep_reporting(store.register_worker, report, Doing(), report_seconds),
        keep_sweeping(database),
    )
    await _serve(settings, app, listener, on_ready, stop, side_tasks)


async def serve_memory(
    settings: Settings,
    store: InMemoryLightningStore,
    listener: socket.socket,
    on_ready: Callable[[str], None] | None,
    stop: asyncio.Event | None,
) -> None:
    """Serve a store in memory, and check its deadlines."""
    app = _app(settings, MemoryBackend(store, settings.gateway_url, _redactor(settings)))
    await _serve(settings, app, listener, on_ready, stop, (_keep_sweeping(store),))


def _redactor(settings: Settings) -> Redactor:
    return Redactor(settings.redact_patterns, [settings.token_value or ""])


def _app(settings: Settings, backend: Backend) -> FastAPI:
    return create_app(backend, token=settings.token_value, gateway_url=settings.gateway_url)


def _url(listener: socket.socket) -> str:
    return f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}"


async def _serve(
    settings: Settings,
    app: FastAPI,
    listener: socket.socket,
    on_ready: Callable[[str], None] | None,
    stop: asyncio.Event | None,
    side_tasks: Iterable[Coroutine[Any, Any, None]],
) -> None:
    config = uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=math.ceil(min(DRAIN_SECONDS, settings.drain_seconds)),
    )
    server = Server(config, lambda: _announce(_url(listener), on_ready), app.state.ending.set)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(task) for task in (*side_tasks, _stop_when_set(stop, server))]
        await server.serve(sockets=[listener])
        for task in tasks:
            task.cancel()


def _announce(url: str, on_ready: Callable[[str], None] | None) -> None:
    log.info("serving url=%s pid=%d", url, os.getpid())
    if on_ready:
        on_ready(url)


async def _stop_when_set(stop: asyncio.Event | None, server: Server) -> None:
    if stop:
        await stop.wait()
        server.should_exit = True


async def _maintain(database: Database, policy: RetentionPolicy) -> None:
    """Create partitions for the coming days, and drop days by the retention policy, every hour."""
    async for _ in Every(PARTITION_SECONDS, at_once=False):
        await maintain_once(database, policy)


async def maintain_once(database: Database, policy: RetentionPolicy) -> None:
    """The hourly maintenance; if Postgres does not answer or is busy, it is done an hour later."""
    with logged(log, "partitions error=%s", RelightError):  # until then rows go to the default partitions
        await ensure_partitions(database)
    if policy == RetentionPolicy():
        return
    with logged(log, "retention error=%s", RelightError):
        for day in await retain(database, policy):
            if day.action == "dropped":
                log.info("dropped day=%s size_bytes=%d reason=%s", day.day, day.size_bytes, day.reason)


async def _keep_sweeping(store: InMemoryLightningStore) -> None:
    async for _ in Every(PERIOD_SECONDS):
        await store.sweep()


def _own_report(url: str, requests: Requests) -> WorkerReport:
    """That this service is there, and how many requests it served since it last said so."""
    report = own_report("store", Doing.counted("requests", requests.take()))
    return report.model_copy(update={"heartbeat_stats": {"url": url}})
