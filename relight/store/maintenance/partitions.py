"""Day partitions of spans, generations, failures and bodies, made before rows of that day exist.

Rows of days without one go to the default partitions, so a service that sleeps for a week loses nothing.
"""

from __future__ import annotations

from relight.store.database import Database

PARTITION_LOCK = 7_348_202
"""Advisory lock: one process makes partitions at a time."""
DAYS_AHEAD = 2


async def ensure_partitions(database: Database, days_ahead: int = DAYS_AHEAD) -> int:
    """Make what is missing for today and the next days; returns how many were made."""
    async with database.transaction() as connection:
        await connection.execute("set local lock_timeout = '2s'")
        await connection.execute("select pg_advisory_xact_lock($1)", PARTITION_LOCK)
        return int(await database.value("ensure_partitions", days_ahead, connection=connection))
