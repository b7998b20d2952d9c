"""The Postgres pool, queries by name, and the schema.

SQL lives in `sql/*.sql`: a line `-- name: open_attempt` starts a query, comment lines under it describe it. No ORM. The
schema is `schema/*.sql`: each file is applied once to a database, in the order of their numbers, and recorded in the
table `migrations`. Errors of Postgres become errors of Relight here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from hashlib import sha256
from importlib import resources
from time import monotonic
from typing import Any, TypeVar

import asyncpg
import orjson
from pydantic import BaseModel

from relight.errors import ConfigError, ConflictError, InvalidRequestError, NotFoundError, PostgresError, RelightError
from relight.retrying import Every
from relight.settings import Settings
from relight.store import live_connection
from relight.store.live_connection import (
    CONNECT_SECONDS,
    UNREACHABLE_ERRORS,
    LiveConnection,
    check_idle_connection,
)

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)
Connection = Any
"""A pooled asyncpg connection; asyncpg ships no types for it."""
MIGRATION_LOCK = 7_348_201
"""Advisory lock under which migrations run, so that any number of services may start at once."""
OUR_STATES: dict[str, type[RelightError]] = {
    "RL404": NotFoundError,
    "RL409": ConflictError,
    "RL422": InvalidRequestError,
}
"""SQLSTATEs that our triggers and functions raise."""
AWAY = ("08", "53", "57")
"""Classes of SQLSTATE of temporary errors: connection lost, out of resources, shutting down or starting."""
TRY_AGAIN = frozenset({"25P03", "40001", "40P01", "55P03"})
"""Idle transaction timeout, serialization failure, deadlock, lock timeout: the same transaction may be sent again."""
MIGRATION_SECONDS = 3600.0
MIGRATIONS_TABLE = (
    "create table if not exists migrations"
    " (version int primary key, name text not null, digest text not null,"
    " applied_at timestamptz not null default now())"
)
NOT_THE_OWNER = (
    "the schema is not up to date, and this role may not create tables: its owner has to bring it up to date. `relight "
    "up` does so for the embedded Postgres; on another one, start a service once with the owner's RELIGHT_POSTGRES_URL"
)
MADE_BEFORE_0_1 = (
    "the database was made by a Relight before 0.1, and its schema can't be migrated. Use a new home (--home or "
    "RELIGHT_HOME), or an empty database if RELIGHT_POSTGRES_URL is set. The old home and database are left as they "
    "are: runs stay there, and exported models in the folder `runs` of the home"
)
UNSTORABLE = ("22", "54")
"""Classes of SQLSTATE for values that can't be stored."""


@cache
def queries() -> dict[str, str]:
    """All named queries."""
    found: dict[str, str] = {}
    for file in sorted(resources.files("relight.store").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = re.split(r"^-- name: (\w+)\s*$", file.read_text(), flags=re.MULTILINE)
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"query {name} is defined twice under relight/store/sql")
            found[name] = text.strip()
    return found


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and SQL of each file of the schema, in order."""
    files = resources.files("relight.store").joinpath("schema").iterdir()
    named = [(file.name, file.read_text()) for file in files if file.name.endswith(".sql")]
    return sorted((int(name.partition("_")[0]), name, text) for name, text in named)


def digest_of(sql: str) -> str:
    """SHA-256 (hex) of the statements of a file, without comments and line breaks."""
    return sha256(" ".join(re.sub(r"--.*", "", sql).split()).encode()).hexdigest()


async def applied_migrations(connection: Connection) -> dict[int, str | None]:
    """Number and digest of each file of the schema that was applied to a database; before 0.1 there were no digests."""
    if await connection.fetchval("select to_regclass('migrations')") is None:
        return {}
    query = "select version, to_jsonb(migrations) ->> 'digest' from migrations"
    return dict(map(tuple, await connection.fetch(query)))


def require_known(applied: Mapping[int, str | None]) -> None:
    """Check that this release can use a database to which these files were applied, after it has applied the others.

    Raises:
        ConfigError: the database is of a release before 0.1 or of a newer one; the message has the remedy.
    """
    known = {number: digest_of(text) for number, _, text in migrations()}
    if any(digest != known.get(number, digest) for number, digest in applied.items()):
        raise ConfigError(MADE_BEFORE_0_1)
    if max(applied, default=0) > max(known):
        raise ConfigError(
            f"the database has schema {max(applied)}, of a newer Relight; this one knows schemas up to {max(known)}. "
            "Install the Relight that the other services have, or use another database"
        )


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


async def _prepare(connection: Connection, url: str) -> None:
    await connection.begin(url)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=_to_json, decoder=orjson.loads, schema="pg_catalog")


async def _reset(connection: Connection) -> None:
    """Return a connection without a reset: nothing sets session state, and asyncpg's reset costs a round trip."""
    if connection.is_in_transaction():
        await connection.reset()
    connection.used_at = monotonic()


def _our_error(error: asyncpg.PostgresError) -> RelightError | None:
    state = str(getattr(error, "sqlstate", "") or "")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if state in OUR_STATES:
        return OUR_STATES[state](reason)
    if state[:2] in AWAY or state in TRY_AGAIN:
        return PostgresError(f"Postgres is not available: {reason}")
    if state[:2] in UNSTORABLE:
        return InvalidRequestError(f"a value can't be stored: {reason}")
    return None


@asynccontextmanager
async def translated() -> AsyncGenerator[None]:
    """Convert errors of Postgres to errors of Relight."""
    try:
        yield
    except asyncpg.PostgresError as error:
        ours = _our_error(error)
        if ours is None:
            raise
        raise ours from error
    # An InternalClientError is what asyncpg makes of a connection that was cut while a call on it was given up.
    except (TimeoutError, OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, ssl.SSLError) as error:
        if isinstance(error, ValueError):  # asyncpg's own, before anything is sent
            raise InvalidRequestError(f"a value can't be stored: {error}") from error
        raise PostgresError(f"can't reach Postgres: {error or type(error).__name__}") from error


class Queries:
    """The named queries. What works within a transaction and outside of one takes this type."""

    def __init__(self, runs_on: Any) -> None:
        self._runs_on = runs_on

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """All rows of a named query."""
        async with translated():
            return await self._runs_on.fetch(queries()[name], *args)

    async def models(self, kind: type[Model], name: str, *args: Any) -> list[Model]:
        """All rows of a named query, each as a model of this kind."""
        return [kind.model_validate(dict(row)) for row in await self.fetch(name, *args)]

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        """The first row of a named query, or None."""
        async with translated():
            return await self._runs_on.fetchrow(queries()[name], *args)

    async def one(self, name: str, *args: Any) -> asyncpg.Record:
        """The row of a named query that always has one: a function, an upsert, a row that is locked."""
        row = await self.row(name, *args)
        assert row is not None, name
        return row

    async def value(self, name: str, *args: Any) -> Any:
        """The first column of the first row of a named query, or None."""
        async with translated():
            return await self._runs_on.fetchval(queries()[name], *args)

    async def execute(self, name: str, *args: Any) -> None:
        """Run a named query for its effect."""
        async with translated():
            await self._runs_on.execute(queries()[name], *args)

    async def execute_many(self, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a named query once for each row of arguments."""
        async with translated():
            await self._runs_on.executemany(queries()[name], rows)


class Transaction(Queries):
    """The named queries, on the one connection of a transaction."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        """For SQL that has no name."""


class Database(Queries):
    """The named queries, each on any connection of a pool."""

    def __init__(self, pool: asyncpg.Pool, url: str, kind: type[LiveConnection] = LiveConnection) -> None:
        super().__init__(pool)
        self.pool = pool
        self.url = url
        self.kind = kind
        self.listeners: set[Connection] = set()
        """Long-lived connections outside the pool."""
        self._probe = asyncio.create_task(self._leave_where_refused())

    @classmethod
    async def connect(cls, url: str, *, max_size: int = 8, kind: type[LiveConnection] = LiveConnection) -> Database:
        """Open the pool, of connections of that class.

        Raises:
            PostgresError: Postgres can't be reached; the message has the address and the remedy.
        """

        async def check(connection: Connection) -> None:
            try:
                await check_idle_connection(connection)
            except UNREACHABLE_ERRORS:
                await pool.expire_connections()  # if one idle connection is dead, the others mostly are too
                raise

        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=0,  # with a minimum, asyncpg logs tracebacks while it can't keep it up
                max_size=max_size,
                init=partial(_prepare, url=url),
                setup=check,
                reset=_reset,
                command_timeout=kind.command_seconds,
                timeout=CONNECT_SECONDS,
                connection_class=kind,
            )
            async with pool.acquire(timeout=CONNECT_SECONDS):
                pass
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError) as error:
            raise PostgresError(
                f"can't reach Postgres at {redact_url(url)}: {error or type(error).__name__}; "
                "check RELIGHT_POSTGRES_URL, or start the embedded stack with `relight up`"
            ) from error
        return cls(pool, url, kind)

    async def close(self) -> None:
        """Close the pool; connections that hang are closed after 5 s."""
        self._probe.cancel()
        try:
            await asyncio.wait_for(self.pool.close(), 5)
        except TimeoutError:
            self.pool.terminate()

    async def _leave_where_refused(self) -> None:
        """Close all sessions when the server accepts no new ones: it may shut down and wait for these."""
        refused = False
        async for _ in Every(self.kind.probe_seconds, at_once=False):
            before, refused = refused, await live_connection.refuses_sessions(self.url)
            if refused:
                await self._leave()
            if refused and not before:
                log.warning("Postgres accepts no sessions (it shuts down, starts or recovers): Relight closes its own")

    async def _leave(self) -> None:
        """Close idle and listening connections now, and those in use when they are returned."""
        await self.pool.expire_connections()
        pool: Any = self.pool
        for holder in pool._holders:  # asyncpg closes idle connections only when one is acquired
            if holder.is_idle():
                holder.terminate()
        for connection in list(self.listeners):
            connection.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        """One transaction on one connection."""
        async with translated(), self.pool.acquire() as connection, connection.transaction():
            yield Transaction(connection)

    async def migrate(self) -> int:
        """Bring the schema up to date, forward only; returns its version. Safe to call from many processes at once.

        Raises:
            ConfigError: the database is of a release before 0.1 or of a newer one.
            PostgresError: the schema is not up to date, and this role may not change it.
        """
        async with self.transaction() as tx:
            connection = tx.connection
            await connection.execute("select pg_advisory_xact_lock($1)", MIGRATION_LOCK, timeout=MIGRATION_SECONDS)
            applied = await applied_migrations(connection)
            require_known(applied)
            # also those whose number is below the newest that was applied
            missing = [migration for migration in migrations() if migration[0] not in applied]
            if missing and not await connection.fetchval("select has_schema_privilege(current_schema(), 'create')"):
                raise PostgresError(NOT_THE_OWNER)
            if missing:
                await connection.execute(MIGRATIONS_TABLE)
            for version, name, text in missing:
                await connection.execute(text, timeout=MIGRATION_SECONDS)
                row = "insert into migrations (version, name, digest) values ($1, $2, $3)"
                await connection.execute(row, version, name, digest_of(text))
            return migrations()[-1][0]


def redact_url(url: str) -> str:
    """A URL without its password."""
    return re.sub(r"(//[^:/@]+):[^@]*@", r"\1:***@", url)


@asynccontextmanager
async def opened_database(settings: Settings, **options: Any) -> AsyncGenerator[Database]:
    """The pool of `connect_database`, closed at the end of the block."""
    database = await connect_database(settings, **options)
    try:
        yield database
    finally:
        await database.close()


async def connect_database(settings: Settings, *, migrate: bool = True, max_size: int = 8) -> Database:
    """A pool, after the schema was migrated; with `migrate=False` the schema is not changed.

    Raises:
        ConfigError: no address is set, or the database is of a release before 0.1 or of a newer one.
        PostgresError: Postgres can't be reached.
    """
    if not settings.postgres_url:
        raise ConfigError(
            "no Postgres is set: give RELIGHT_POSTGRES_URL, or start the embedded stack with `relight up`"
        )
    database = await Database.connect(settings.postgres_url, max_size=max_size)
    if migrate:
        await database.migrate()
    return database
