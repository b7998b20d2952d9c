"""The sweeper: periodically finds overdue attempts of the queue and lets their rollouts be tried again.

Every store service runs one; the holder of a lease in Postgres does the work, and another takes over when the lease has
expired. It ignores rollouts that a workflow dispatches, whose deadlines the runner checks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import Any

from relight.errors import RelightError
from relight.retrying import Every, logged
from relight.store.database import Database
from relight.store.events.log import drop_events
from relight.store.workers import drop_gone_workers

log = logging.getLogger(__name__)
PERIOD_SECONDS = 0.5
LEASE_SECONDS = 5.0
BATCH = 200
KEY_SECONDS = 24 * 3600.0
"""How long an idempotency key is kept."""
HOUSEKEEPING_SECONDS = 60.0
HOLDER = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


async def sweep(database: Database, holder: str = HOLDER, lease_seconds: float = LEASE_SECONDS) -> list[Any] | None:
    """Process overdue attempts; returns them, or None if another service holds the lease."""
    found: list[Any] = []
    while True:
        some = await database.value("sweep", holder, lease_seconds, BATCH)
        if some is None:
            return None
        found += some
        if len(some) < BATCH:
            break
    for attempt in found:
        log.info("attempt %s of %s is %s", attempt["attempt_id"], attempt["rollout_id"], attempt["status"])
    return found


async def keep_sweeping(
    database: Database,
    *,
    period_seconds: float = PERIOD_SECONDS,
    lease_seconds: float = LEASE_SECONDS,
    holder: str = HOLDER,
) -> None:
    """Sweep periodically while this process holds the lease, until cancelled."""
    forget_at = 0.0
    loop = asyncio.get_running_loop()
    periods = Every(period_seconds)
    async for _ in periods:
        periods.seconds = period_seconds
        # While Postgres does not answer, nothing is lost: overdue attempts are found later.
        with logged(log, "can't check for overdue attempts: %s", RelightError):
            if await sweep(database, holder, lease_seconds) is None:
                periods.seconds = lease_seconds / 2
            elif loop.time() >= forget_at:
                await database.execute("drop_old_keys", KEY_SECONDS)
                await drop_events(database)
                await drop_gone_workers(database)
                forget_at = loop.time() + HOUSEKEEPING_SECONDS
