"""Executes the commands that came over HTTP: claims them, one of each run at a time, and sends them to the runs.

Any number of orchestrators may do so. A command whose orchestrator dies is claimed again; executing it twice makes one
change, because its key is the id of the update and of the audit row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from temporalio.client import Client
from temporalio.service import RPCError

from relight.errors import OverloadedError, PostgresError, RelightError, StoreError, TemporalError
from relight.operators import command_requests
from relight.operators.operator import Operator
from relight.operators.signals import notify_run
from relight.operators.starting import start_requested
from relight.retrying import Every, logged
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.types import names
from relight.types.payloads import ChangeResult
from relight.types.views import CommandView

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.5
CLAIMED_AT_ONCE = 8
POSTPONED_SECONDS = 5.0
ENDING_SECONDS = 5.0
"""How long commands under way may take after SIGTERM; then another orchestrator executes them."""
TRANSIENT = (RPCError, TemporalError, PostgresError, StoreError, OverloadedError)
"""Errors that say nothing about the command."""


async def keep_doing_commands(db: Database, client: Client, queue: str) -> None:
    """Execute the open commands periodically, until cancelled."""
    operator = Operator(client, RunViews(db), queue)
    async for _ in Every(PERIOD_SECONDS):
        with logged(log, "can't read commands: %s", PostgresError, action="commands_failed"):
            while await do_commands(db, operator):
                pass


async def do_commands(db: Database, operator: Operator) -> int:
    """Execute the open commands; returns how many were claimed."""
    claimed = await command_requests.claim_requests(db, CLAIMED_AT_ONCE)
    doing = {asyncio.create_task(_do(db, operator, command)): command for command in claimed}
    try:
        await asyncio.gather(*map(asyncio.shield, doing))
    except asyncio.CancelledError:
        await _release(db, doing)
        raise
    return len(claimed)


async def _release(db: Database, doing: Mapping[asyncio.Task[None], CommandView]) -> None:
    """Release commands that can't be finished before this process ends, so that other orchestrators can claim them at
    once.
    """
    _, late = await asyncio.wait(doing, timeout=ENDING_SECONDS) if doing else (set(), set())
    for task in late:
        task.cancel()
        await command_requests.postpone_request(db, doing[task].command_id, "its orchestrator ended", 0.0)


async def _do(db: Database, operator: Operator, command: CommandView) -> None:
    key = command.command_id
    try:
        if command.result is not None:  # the store has executed it: the workflow gets a signal
            await notify_run(db, operator.client, command.run)
            await command_requests.finish_request(db, key, None, None)
            return
        if command.action == names.START:
            result = await start_requested(db, operator.client, operator.queue, command)
        elif (result := await command_requests.outcome_of_request(db, command)) is None:
            result = await operator.do(command.run, command.action, command.value, key)
    except (RelightError, RPCError) as error:
        if isinstance(error, TRANSIENT):
            await _postpone(db, command, error)
            return
        refused = ChangeResult(accepted=False, reason=error.message.removeprefix(f"run {command.run} refused: "))
        # An earlier try may have succeeded and ended the run, which then refuses this one.
        await _finish(db, command, await command_requests.outcome_of_request(db, command) or refused)
    except Exception as error:  # an error of one command must not block those of other runs
        await _postpone(db, command, error)
    else:
        await _finish(db, command, result)


async def _finish(db: Database, command: CommandView, result: ChangeResult) -> None:
    answer = (result, None) if result.accepted else (None, result.reason)
    await command_requests.finish_request(db, command.command_id, *answer)


async def _postpone(db: Database, command: CommandView, error: Exception) -> None:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    log.warning("%s of run %s: %s", command.action, command.run, reason, extra={"action": "command_postponed"})
    await command_requests.postpone_request(db, command.command_id, reason, POSTPONED_SECONDS)
