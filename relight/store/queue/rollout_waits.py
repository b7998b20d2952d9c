"""Waits for rollouts to end, by LISTEN instead of polling.

One connection in each process listens for all waits; it is opened by the first and closed a while after the last. A
wait is registered before it queries, so that no end is missed. Each time the listener has connected, one query checks
all rollouts that are waited for. This is also done periodically, since the ends of runs' own rollouts are not
announced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from relight.errors import RelightError
from relight.retrying import Every, logged
from relight.store.database import Database
from relight.store.notifications import listening
from relight.store.queue import rows
from relight.types.rollout import Rollout

log = logging.getLogger(__name__)
CHANNEL = "relight_ended"
LINGER_SECONDS = 10.0
CHECK_SECONDS = 5.0
RECONNECT_SECONDS = 0.5


class Waiter:
    """One wait."""

    def __init__(self, pending: Iterable[str]) -> None:
        self.pending = set(pending)
        self.woken = asyncio.Event()

    def ended(self, rollout_id: str) -> None:
        """One of its rollouts has ended."""
        self.pending.discard(rollout_id)
        if not self.pending:
            self.woken.set()


class Waits:
    """All waits for rollouts in this process."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.connections = 0
        """How often the listener has connected since the start."""
        self._waiting: defaultdict[str, set[Waiter]] = defaultdict(set)
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, rollout_ids: Sequence[str], timeout: float | None) -> list[Rollout]:
        """Wait until all rollouts have ended or the time is over; returns those that have ended. Unknown ids are
        ignored.
        """
        ids = list(dict.fromkeys(rollout_ids))
        if timeout is not None and timeout <= 0:
            return (await self._check(ids))[0]
        try:
            async with asyncio.timeout(timeout):
                return await self._until_all_ended(ids)
        except TimeoutError:
            return (await self._check(ids))[0]

    async def aclose(self) -> None:
        """Stop listening."""
        if self._listener:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def _until_all_ended(self, ids: list[str]) -> list[Rollout]:
        while True:
            waiter = Waiter(ids)
            self._register(waiter, ids)
            try:
                ended, still_open = await self._check(ids)
                if not still_open:
                    return ended
                for rollout_id in set(ids) - still_open:
                    waiter.ended(rollout_id)
                await waiter.woken.wait()
            finally:
                self._forget(waiter, ids)

    async def _check(self, ids: list[str]) -> tuple[list[Rollout], set[str]]:
        found = {row["rollout_id"]: row["rollout"] for row in await self.database.fetch("rollouts_by_id", ids)}
        ended = [rows.rollout_of(found[rollout_id]) for rollout_id in ids if found.get(rollout_id)]
        return ended, {rollout_id for rollout_id, rollout in found.items() if rollout is None}

    def _register(self, waiter: Waiter, ids: list[str]) -> None:
        for rollout_id in ids:
            self._waiting[rollout_id].add(waiter)
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())

    def _forget(self, waiter: Waiter, ids: list[str]) -> None:
        for rollout_id in ids:
            self._waiting[rollout_id].discard(waiter)
            if not self._waiting[rollout_id]:
                del self._waiting[rollout_id]

    def _wake(self, rollout_id: str) -> None:
        for waiter in list(self._waiting.get(rollout_id, ())):
            waiter.ended(rollout_id)

    async def _listen(self) -> None:
        """Listen until there has been no wait for a while."""
        async for _ in Every(RECONNECT_SECONDS):
            with logged(log, "can't listen for the end of rollouts: %s", RelightError):
                await self._listen_once()
            if not self._waiting:
                return

    async def _listen_once(self) -> None:
        lost = asyncio.Event()
        async with listening(self.database, CHANNEL, self._wake, lost.set):
            self.connections += 1
            await self._check_periodically(lost)

    async def _check_periodically(self, lost: asyncio.Event) -> None:
        idle = 0.0
        async for _ in Every(CHECK_SECONDS, wake=lost):
            if lost.is_set() or idle >= LINGER_SECONDS:
                return
            if self._waiting:
                idle = 0.0
                for row in await self.database.fetch("not_open", list(self._waiting)):
                    self._wake(row["id"])
            else:
                idle += CHECK_SECONDS
