"""A Postgres connection that detects half-open connections, at this end and at the server's.

If the path drops packets, both ends keep a connection that appears open. So a command that is late is checked on
another connection: if the server does not work on it, its connection is dead, and the server is asked to end the
session, which releases its locks. A command that is not answered in time closes its connection in any case. If the
client can't tell the server, the server itself ends a transaction that waits too long for its next command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, Final, cast

import asyncpg

from relight.retrying import Every
from relight.transport.keepalive import GONE_SECONDS, IDLE_SECONDS, INTERVAL_SECONDS, PROBES, keep_transport_alive

CONNECT_SECONDS: Any = 10.0
CHECK_SECONDS: Any = 5.0
IDLE_TRANSACTION_SECONDS: Final = 60
UNREACHABLE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
SESSION_SETTINGS: Final = {
    "idle_in_transaction_session_timeout": f"{IDLE_TRANSACTION_SECONDS}s",
    "tcp_keepalives_idle": str(IDLE_SECONDS),
    "tcp_keepalives_interval": str(INTERVAL_SECONDS),
    "tcp_keepalives_count": str(PROBES),
    "tcp_user_timeout": f"{GONE_SECONDS}s",
}
"""Settings of the server's session. On a unix socket those for TCP have no effect."""
SETTING_CALLS = [f"set_config('{name}', '{value}', false)" for name, value in SESSION_SETTINGS.items()]
BEGIN_SESSION_SQL = (
    f"select pid, backend_start, {', '.join(SETTING_CALLS)} from pg_stat_activity where pid = pg_backend_pid()"
)
WORKS_FOR_SESSION_SQL: Final = """
select wait_event is distinct from 'ClientRead' or state_change > clock_timestamp() - $3 * interval '1 s'
from pg_stat_activity where pid = $1 and backend_start = $2
"""
"""Whether the server works for a session, or did just now, and does not wait for its next command. (The state alone is
not enough: a session stays `active` between asyncpg's prepare and execute.)
"""
END_SESSION_SQL: Final = "select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and backend_start = $2"


@dataclass(frozen=True)
class Session:
    """The server's identification of a connection: process ids are reused, so it includes the start."""

    url: str
    pid: int
    began_at: datetime


class LiveConnection(asyncpg.Connection):
    """asyncpg's connection, except that it is closed if a command was lost or can't be cancelled."""

    command_seconds: Any = 30.0
    """Longest wait for an answer; commands that may take longer give their own limit."""
    late_seconds = 4.0
    """A command that takes longer is checked at this interval."""
    on_its_way_seconds = 3.0
    """How long an answer may take from the server to here."""
    cancel_seconds = 5.0
    """How long a cancelled command may take to end before its connection is closed."""
    ping_seconds = 10.0
    """The interval of checks on a connection that only listens, and how long an answer may take."""
    rested_seconds = 5.0
    """A pooled connection that was idle for this time is checked before use; the check may take as long."""
    probe_seconds = 5.0
    """The interval of new connections that only check whether the server accepts sessions."""

    def __init__(self, protocol: Any, transport: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(protocol, transport, *arguments, **options)
        self.used_at = monotonic()
        """When it was last given back to its pool."""
        self._session: Session | None = None
        keep_transport_alive(transport)

    async def begin(self, url: str) -> None:
        """Set the session up. From now on late commands are checked on a connection to `url`."""
        row: Any = await self.fetchrow(BEGIN_SESSION_SQL)
        self._session = Session(url, row["pid"], row["backend_start"])

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """A command, watched."""
        with self._watched():
            return await super().execute(query, *args, timeout=timeout)

    async def _do_execute(self, *args: Any, **options: Any) -> Any:
        """Commands with arguments or result rows, watched."""
        with self._watched():
            return await super()._do_execute(*args, **options)

    @contextmanager
    def _watched(self) -> Generator[None]:
        loop, watch = asyncio.get_running_loop(), cast("list[asyncio.Task[None]]", [])
        timer = loop.call_later(self.late_seconds, lambda: watch.append(loop.create_task(self._ask_after())))
        try:
            yield
        finally:
            timer.cancel()
            for task in watch:
                task.cancel()

    async def _ask_after(self) -> None:
        """Close this connection as soon as the server says that it does not work for it."""
        while self._session is not None and not self.is_closed():
            if await self.end_idle(self._session):
                self.terminate()
                return
            await asyncio.sleep(self.late_seconds)

    async def end_idle(self, session: Session) -> bool | None:
        """As `end_idle_session`."""
        return await end_idle_session(session, self.on_its_way_seconds)

    async def _cancel(self, waiter: Any, cancel_waiter: Any = None) -> None:
        """Limits the wait for a cancel, during which the pool can't reuse the connection."""
        async with asyncio.timeout(self.cancel_seconds) as limit:
            await super()._cancel(waiter, cancel_waiter)
        if limit.expired():
            self.terminate()


async def end_idle_session(session: Session, on_its_way_seconds: float) -> bool | None:
    """End a session that waits for its client; returns whether it ended, now or before. None: the server does not
    answer.
    """
    try:
        connection: Any = await asyncpg.connect(session.url, timeout=CHECK_SECONDS, command_timeout=CHECK_SECONDS)
    except UNREACHABLE_ERRORS:
        return None
    try:
        idle = not await connection.fetchval(WORKS_FOR_SESSION_SQL, session.pid, session.began_at, on_its_way_seconds)
        if idle:
            await connection.fetchval(END_SESSION_SQL, session.pid, session.began_at)
    except UNREACHABLE_ERRORS:
        return None
    else:
        return idle
    finally:
        connection.terminate()


async def check_idle_connection(connection: Any) -> None:
    """Check whether an idle connection is alive; a dead one is closed.

    Raises:
        TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: it is dead.
    """
    if monotonic() - connection.used_at < connection.rested_seconds:
        return
    try:
        await connection.execute("select 1", timeout=connection.rested_seconds)
    except BaseException:
        connection.terminate()
        raise


async def connect(url: str, kind: type[LiveConnection] = LiveConnection) -> Any:
    """A connection outside the pool.

    Raises:
        OSError, TimeoutError, asyncpg.PostgresError: out of reach.
    """
    timeouts = {"timeout": CONNECT_SECONDS, "command_timeout": kind.command_seconds}
    connection: Any = await asyncpg.connect(url, **timeouts, connection_class=kind)
    await connection.begin(url)
    return connection


async def refuses_sessions(url: str) -> bool:
    """Whether the server says that it accepts no new sessions: it shuts down, starts or recovers. If it shuts down, it
    may wait for the open ones without a limit.
    """
    try:
        connection: Any = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
    except asyncpg.CannotConnectNowError:
        return True
    except UNREACHABLE_ERRORS:  # says nothing about open ones
        return False
    connection.terminate()
    return False


async def keep_asking(connection: Any) -> None:
    """Check the connection periodically; returns when the server does not answer and the connection is closed."""
    try:
        async for _ in Every(connection.ping_seconds, at_once=False):
            await connection.execute("select 1", timeout=connection.ping_seconds)
    except UNREACHABLE_ERRORS:
        connection.terminate()
