"""LISTEN on Postgres, on a connection outside the pool, since it is long-lived."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from relight.retrying import in_background
from relight.store.database import Database, translated
from relight.store.live_connection import connect, keep_asking


@asynccontextmanager
async def listening(
    database: Database, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
) -> AsyncGenerator[None]:
    """Call `heard` with the payload of each notification, and `lost` when the connection has ended or does not answer.

    Earlier notifications are not delivered: query once after entering the block.

    Raises:
        PostgresError: Postgres can't be reached.
    """

    def on_message(_connection: Any, _pid: int, _channel: str, payload: Any) -> None:
        heard(str(payload))

    def on_end(_connection: Any) -> None:
        lost()

    async with translated():
        connection = await connect(database.url, database.kind)
        database.listeners.add(connection)
        try:
            async with in_background(keep_asking(connection)):
                connection.add_termination_listener(on_end)
                await connection.add_listener(channel, on_message)
                yield
        finally:
            database.listeners.discard(connection)
            connection.terminate()
