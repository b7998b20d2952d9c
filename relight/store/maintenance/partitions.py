"""Creates the day partitions of spans, generations, failures and bodies in advance.

Rows of days without a partition go to the default partitions, so nothing is lost if no service runs for a week.
"""

from __future__ import annotations

from relight.store.database import Database

PARTITION_LOCK = 7_348_202
"""Advisory lock: one process makes partitions at a time."""
DAYS_AHEAD = 2


async def ensure_partitions(database: Database, days_ahead: int = DAYS_AHEAD) -> int:
    """Create the missing partitions for today and the next days; returns how many."""
    async with database.transaction() as connection:
        await connection.execute("set local lock_timeout = '2s'")
        await connection.execute("select pg_advisory_xact_lock($1)", PARTITION_LOCK)
        return int(await database.value("ensure_partitions", days_ahead, connection=connection))
