"""Commands that came over HTTP: rows until an orchestrator has executed them.

The store service has no Temporal client: it writes the command, and an orchestrator executes it. So an acknowledged
command survives the failure of any process, Temporal included, and is executed once, since its key is the update's id.

Pause, stop and cancel are stored in the run's row, which its workflow reads. So they are executed here, with the
command's row and the audit row in one transaction; the orchestrator only signals the workflow, which then reads them at
once.
"""

from __future__ import annotations

from typing import Any

from relight.errors import NotFoundError
from relight.faults import FaultPoint, fault_point
from relight.operators.command_transactions import done_before, write_change
from relight.store.database import Database, Transaction
from relight.store.runs.rows import get_run
from relight.types import names
from relight.types.commands import COMMANDS, Fork, Replay
from relight.types.payloads import ChangeInput, ChangeResult
from relight.types.views import CommandView

CLAIM_SECONDS = 60.0
"""How long an orchestrator has for a command before another one tries."""


async def add_request(db: Database, key: str, run: str, action: str, value: dict[str, Any]) -> CommandView:
    """Write the row of a command, once; pause, stop and cancel are executed with it.

    Raises:
        NotFoundError: there is no such run.
    """
    actor = str(value.get("actor", "operator"))
    async with db.transaction() as tx:
        row = await get_run(tx, run, lock=True)
        new = await tx.row("insert_request", key, run, action, value, actor)
        if new and COMMANDS[action].by_store:
            change = ChangeInput(
                run=run, epoch=row.epoch, action=action, actor=actor, request_key=f"update/{key}", value=value
            )
            await _answer(tx, key, await write_change(tx, row, change))
    if action == names.CANCEL:
        fault_point(FaultPoint.CANCEL_WRITTEN)
    return await get_request(db, key)


async def _answer(tx: Transaction, key: str, result: ChangeResult) -> None:
    if result.accepted:
        await tx.execute("answer_request", key, result.model_dump(mode="json"))
    else:
        await tx.execute("finish_request", key, None, result.reason)


async def outcome_of_request(db: Database, command: CommandView) -> ChangeResult | None:
    """The result of a command that an orchestrator executed without recording it, because it died."""
    spec = COMMANDS.get(command.action)
    if spec and spec.model in (Fork, Replay):
        made = await db.row("made_by_request", command.command_id)
        return None if made is None else ChangeResult(accepted=True, **dict(made))
    done = await done_before(db, f"update/{command.command_id}")
    if done and not done.accepted:
        return done.model_copy(update={"reason": f"{command.action}: {done.reason}"})
    return done


async def get_request(db: Database, key: str) -> CommandView:
    """A command and its result.

    Raises:
        NotFoundError: there is no such command.
    """
    row = await db.row("get_request", key)
    if row is None:
        raise NotFoundError(f"there is no command {key!r}")
    return CommandView.model_validate(dict(row))


async def claim_requests(db: Database, limit: int) -> list[CommandView]:
    """Claim commands that no orchestrator executes, oldest first, one of each run."""
    return await db.models(CommandView, "claim_requests", limit, CLAIM_SECONDS)


async def finish_request(db: Database, key: str, result: ChangeResult | None, refused: str | None) -> None:
    """Record the result of a command; one that has an answer keeps it."""
    await db.execute("finish_request", key, result.model_dump(mode="json") if result else None, refused)


async def postpone_request(db: Database, key: str, reason: str, seconds: float) -> None:
    """Try a command again later; the reason is shown meanwhile."""
    await db.execute("postpone_request", key, reason, seconds)
