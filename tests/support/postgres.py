"""The embedded Postgres for tests: one server a session, a migrated database a test, with the services' role.

Databases are cloned from a template, and used again by later tests after they have been wiped, which takes a few
milliseconds instead of a hundred.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from relight.errors import PostgresError
from relight.processes.child import tied_to_parent
from relight.retrying import Backoff, retry
from relight.stack import postgres_roles
from relight.stack import postgres_server as embedded
from relight.stack.postgres_roles import OWNER, SERVICE, SUPERUSER
from relight.stack.postgres_server import PostgresServer
from relight.store.database import Database

TEMPLATE = "relight_template"
FAST = ("fsync = off", "synchronous_commit = off", "full_page_writes = off", "autovacuum = off")
KEPT_TABLES = frozenset({"migrations"})
_numbers = itertools.count(1)
_wiped: dict[str, list[str]] = defaultdict(list)


@contextmanager
def postgres_server(folder: Path, *, durable: bool = False) -> Generator[str]:
    """The embedded server of that home; yields the URL of its maintenance database. It is fast unless `durable`.

    The URL is the superuser's, who may log in here.
    """
    server = embedded.describe(folder)
    _run_beside(embedded.prepare(server))
    _let_superuser_in(server, () if durable else FAST)
    command = tied_to_parent(server.command(), signal.SIGQUIT, server.user)
    with (folder / "postgres.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _run_beside(_make_template(server.url(SUPERUSER)))
        yield server.url(SUPERUSER)
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait()


def _run_beside(work: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: the caller's may run an event loop."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, work).result()


def _let_superuser_in(server: PostgresServer, settings: Sequence[str]) -> None:
    password = secrets.token_urlsafe(16)
    statements = [f"alter role {SUPERUSER} password '{password}'", *(f"alter system set {text}" for text in settings)]
    sql = "".join(f"{statement};\n\n" for statement in statements)
    postgres_roles.execute_alone(server.binaries, server.data, server.user, sql)
    with server.password_file.open("a") as file:
        file.write(f"*:*:*:{SUPERUSER}:{password}\n")


async def _make_template(url: str) -> None:
    backoff = Backoff(0.05, 0.5, within_seconds=60)
    maintenance = await retry(partial(Database.connect, url, max_size=1), PostgresError, backoff=backoff)
    await maintenance.pool.execute(f"create database {TEMPLATE}")
    await maintenance.close()
    template = database_url(url, TEMPLATE)
    connection = await asyncpg.connect(template)
    await connection.execute(postgres_roles.privileges())
    await connection.close()
    database = await Database.connect(as_role(template, OWNER))
    await database.migrate()
    await database.close()


def as_role(url: str, role: str = SERVICE) -> str:
    """The same database, for another role."""
    return re.sub(r"//\w+@", f"//{role}@", url)


def database_url(url: str, name: str) -> str:
    """The same server, another database."""
    head, _, query = url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")


async def create_database(url: str, template: str = TEMPLATE) -> str:
    """A new, migrated database, for a test that changes its schema; returns the URL for the superuser.

    It goes with the server.
    """
    name = f"test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"create database {name} template {template} owner {OWNER}")
        await connection.execute(f"revoke temporary on database {name} from public")  # a copy has none of these
    finally:
        await connection.close()
    return database_url(url, name)


@asynccontextmanager
async def connected_as(role: str, url: str) -> AsyncGenerator[Any]:
    """A connection to the same database for another role: the owner, or the superuser."""
    connection = await asyncpg.connect(as_role(url, role))
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def fresh_database_url(url: str) -> AsyncGenerator[str]:
    """A migrated database without rows, for the services' role; connections to it are closed at the end."""
    name_url = _wiped[url].pop() if _wiped[url] else await create_database(url)
    yield as_role(name_url)
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
