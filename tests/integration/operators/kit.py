"""Agents that stop where a test wants to look, and what is read from Postgres afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from relight.store.database import Database
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import always_right


class Gate:
    """An agent that waits at chosen rollouts until the test opens the gate."""

    def __init__(self, holds: Callable[[OpenedAttempt], bool]) -> None:
        self.holds = holds
        self.open = asyncio.Event()
        self.held: set[str] = set()
        self.under_way = 0
        self.most_under_way = 0
        self.waits: list[tuple[Callable[[], bool], asyncio.Event]] = []

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.holds(attempt):
                self.held.add(attempt.rollout_id)
                self._notify()
                await self.open.wait()
            return await always_right(attempt)
        finally:
            self.under_way -= 1

    async def until(self, check: Callable[[], bool], seconds: float = 30) -> None:
        """Return when `check` is true of what is held."""
        event = asyncio.Event()
        self.waits.append((check, event))
        self._notify()
        async with asyncio.timeout(seconds):
            await event.wait()

    def _notify(self) -> None:
        for check, event in self.waits:
            if check():
                event.set()


def at(*endings: str) -> Callable[[OpenedAttempt], bool]:
    """Rollouts by the end of their id."""
    return lambda attempt: attempt.rollout_id.endswith(endings)


def fails(attempt: OpenedAttempt, failure_class: str = FailureClass.AGENT_ERROR) -> FinishRequest:
    """An attempt that ended badly."""
    return FinishRequest(
        attempt_id=attempt.attempt_id,
        fence=attempt.fence,
        failure_class=FailureClass(failure_class),
        message="on purpose",
    )


async def audit(database: Database, run: str) -> list[dict[str, Any]]:
    rows = await database.pool.fetch("select * from audit where run = $1 order by id", run)
    return [dict(row) for row in rows]


def status_of(database: Database, rollout_id: str, *wanted: str) -> Callable[[], Awaitable[bool]]:
    """Whether a rollout has one of these statuses by now."""

    async def check() -> bool:
        status = await database.pool.fetchval("select status from rollouts where rollout_id = $1", rollout_id)
        return status in wanted

    return check


def run_is(database: Database, run: str, wanted: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await database.pool.fetchval("select status from runs where run = $1", run) == wanted

    return check


async def trained_twice(database: Database, run: str) -> int:
    """Rollouts that the ledger of a run holds more than once."""
    text = "select count(*) from (select from step_rollouts where run = $1 group by rollout_id having count(*) > 1) x"
    return int(await database.pool.fetchval(text, run))
