"""Creates the day partitions of spans, generations, failures and bodies in advance.

Rows of days without a partition go to the default partitions, so nothing is lost if no service runs for a week.
"""

from __future__ import annotations

from relight.store.database import Database, Transaction

PARTITION_LOCK = 7_348_202
"""Advisory lock: one process makes partitions at a time."""
DAYS_AHEAD = 2


async def ensure_partitions(database: Database, days_ahead: int = DAYS_AHEAD) -> int:
    """Create the missing partitions for today and the next days; returns how many."""
    async with database.transaction() as tx:
        await lock_partitions(tx)
        return int(await tx.value("ensure_partitions", days_ahead))


async def lock_partitions(tx: Transaction) -> None:
    """Lock partitions against other processes that make or drop them; any lock is waited for 2 s at most."""
    await tx.connection.execute("set local lock_timeout = '2s'")
    await tx.connection.execute("select pg_advisory_xact_lock($1)", PARTITION_LOCK)
