"""Does the commands that came over HTTP: claims them, one of each run at a time, and tells the runs.

Any number of orchestrators may do so. A command whose orchestrator dies is claimed again; done twice it is one change,
because its key is the update's id and its audit row's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from temporalio.client import Client

from relight.errors import OverloadedError, PostgresError, RelightError, StoreError, TemporalError
from relight.operations import Operator
from relight.store import requests, views
from relight.store.database import Database
from relight.types.views import CommandView, RunSummary, RunView, StepView, VersionView

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.5
AT_ONCE = 8
LATER_SECONDS = 5.0
ENDING_SECONDS = 5.0
"""How long commands under way may take once this process is told to end; then another orchestrator does them."""
PASSING = (TemporalError, PostgresError, StoreError, OverloadedError)
"""Errors that say nothing about the command."""


class LocalReader:
    """Reads runs from Postgres itself."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def run(self, run: str) -> RunView:
        """One run."""
        return await views.get_run(self.db, run)

    async def runs(self, limit: int = 100) -> list[RunSummary]:
        """Runs, newest first."""
        return await views.list_runs(self.db, limit)

    async def steps(self, run: str, *, after: int = 0, recorded: bool | None = None) -> list[StepView]:
        """The next steps after `after`."""
        return await views.list_steps(self.db, run, after=after, recorded=recorded)

    async def versions(self, run: str) -> list[VersionView]:
        """Policy versions."""
        return await views.list_versions(self.db, run)


async def keep_obeying(db: Database, client: Client, queue: str) -> None:
    """Do what is asked, until cancelled."""
    operator = Operator(client, LocalReader(db), queue)
    while True:
        try:
            if await obey(db, operator):
                continue
        except PostgresError as error:
            log.warning("can't look for commands: %s", error, extra={"action": "commands_failed"})
        await asyncio.sleep(PERIOD_SECONDS)


async def obey(db: Database, operator: Operator) -> int:
    """Do the commands that are open; returns how many were claimed."""
    claimed = await requests.claim_requests(db, AT_ONCE)
    doing = {asyncio.create_task(_do(db, operator, command)): command for command in claimed}
    try:
        await asyncio.gather(*map(asyncio.shield, doing))
    except asyncio.CancelledError:
        await _let_go(db, doing)
        raise
    return len(claimed)


async def _let_go(db: Database, doing: Mapping[asyncio.Task[None], CommandView]) -> None:
    """This process ends: what can't be done in time is another's at once."""
    _, late = await asyncio.wait(doing, timeout=ENDING_SECONDS) if doing else (set(), set())
    for task in late:
        task.cancel()
        await requests.postpone_request(db, doing[task].command_id, "its orchestrator ended", 0.0)


async def _do(db: Database, operator: Operator, command: CommandView) -> None:
    key = command.command_id
    try:
        result = await operator.do(command.run, command.action, command.value, key)
    except RelightError as error:
        if isinstance(error, PASSING):
            await _later(db, command, error)
            return
        await requests.finish_request(db, key, None, error.message.removeprefix(f"run {command.run} refused: "))
    except Exception as error:  # whatever it is, it is no reason to leave other runs' commands undone
        await _later(db, command, error)
    else:
        await requests.finish_request(db, key, result, None)


async def _later(db: Database, command: CommandView, error: Exception) -> None:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    log.warning("%s of run %s: %s", command.action, command.run, reason, extra={"action": "command_postponed"})
    await requests.postpone_request(db, command.command_id, reason, LATER_SECONDS)
