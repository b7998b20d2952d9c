"""A Postgres connection that never hangs: what to tell asyncpg and the server so that neither waits for a dead peer.

A path that swallows packets leaves both ends with a connection that looks alive. Here a command that is not answered in
time ends its connection, and the server ends a transaction that nobody goes on with, and with it that one's locks.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Final

import asyncpg

from relight.keepalive import GONE_SECONDS, IDLE_SECONDS, INTERVAL_SECONDS, PROBES, keep_transport_alive

CONNECT_SECONDS: Any = 10.0
COMMAND_SECONDS: Any = 30.0
"""Longest wait for an answer. Whatever takes longer says so."""
CANCEL_SECONDS: Final = 5.0
"""How long a command that was given up may take to end before its connection is dropped."""
PING_SECONDS: Final = 10.0
"""Between two questions on a connection that only listens, and how long an answer may take."""
RESTED_SECONDS: Final = 5.0
"""A pooled connection that was not used for so long is asked for a sign of life, for as long, before it is used."""
IDLE_TRANSACTION_SECONDS: Final = 60
SESSION: Final = {
    "idle_in_transaction_session_timeout": f"{IDLE_TRANSACTION_SECONDS}s",
    "tcp_keepalives_idle": str(IDLE_SECONDS),
    "tcp_keepalives_interval": str(INTERVAL_SECONDS),
    "tcp_keepalives_count": str(PROBES),
    "tcp_user_timeout": f"{GONE_SECONDS}s",
}
"""What the server is asked to do by itself. On a unix socket it ignores what is said of TCP."""
SET = "select " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SESSION.items())


class LiveConnection(asyncpg.Connection):
    """asyncpg's, except that one whose command can't be cancelled is dropped soon."""

    def __init__(self, protocol: Any, transport: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(protocol, transport, *arguments, **options)
        self.used_at = monotonic()
        """When it was last given back to its pool."""
        keep_transport_alive(transport)

    async def _cancel(self, waiter: Any, cancel_waiter: Any = None) -> None:
        """asyncpg itself waits as long as for the command, while the pool can't give the connection to anybody."""
        async with asyncio.timeout(CANCEL_SECONDS) as limit:
            await super()._cancel(waiter, cancel_waiter)
        if limit.expired():
            self.terminate()


async def check_rested(connection: Any) -> None:
    """Ask a connection that nobody has used for a while whether it is alive; it is dropped where it is not.

    Raises:
        TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: it is not.
    """
    if monotonic() - connection.used_at < RESTED_SECONDS:
        return
    try:
        await connection.execute("select 1", timeout=RESTED_SECONDS)
    except BaseException:
        connection.terminate()
        raise


async def connect(url: str) -> Any:
    """A connection outside the pool.

    Raises:
        OSError, TimeoutError, asyncpg.PostgresError: out of reach.
    """
    connection: Any = await asyncpg.connect(
        url, timeout=CONNECT_SECONDS, command_timeout=COMMAND_SECONDS, connection_class=LiveConnection
    )
    await connection.execute(SET)
    return connection


async def keep_asking(connection: Any) -> None:
    """Ask now and then whether the server is there; returns when it is not, and the connection has ended."""
    try:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await connection.execute("select 1", timeout=PING_SECONDS)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError):
        connection.terminate()
