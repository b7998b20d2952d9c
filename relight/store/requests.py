"""Commands that came over HTTP: rows until somebody has done them.

The store service has no Temporal client: it writes the command, and an orchestrator does it. So a command that was
acknowledged survives whatever dies next, Temporal included, and is done once: its key is the update's id.
"""

from __future__ import annotations

from typing import Any

from relight.errors import NotFoundError
from relight.store.database import Database
from relight.types.payloads import ChangeResult
from relight.types.views import CommandView

CLAIM_SECONDS = 60.0
"""How long an orchestrator has for a command before another one tries."""


async def add_request(db: Database, key: str, run: str, action: str, value: dict[str, Any]) -> CommandView:
    """Write a command down, once.

    Raises:
        NotFoundError: there is no such run.
    """
    if await db.row("get_run", run) is None:
        raise NotFoundError(f"there is no run {run!r}; `relight runs` lists them")
    await db.execute("insert_request", key, run, action, value, str(value.get("actor", "operator")))
    return await get_request(db, key)


async def get_request(db: Database, key: str) -> CommandView:
    """A command and what came of it.

    Raises:
        NotFoundError: nobody gave such a command.
    """
    row = await db.row("get_request", key)
    if row is None:
        raise NotFoundError(f"there is no command {key!r}")
    return CommandView.model_validate(dict(row))


async def claim_requests(db: Database, limit: int) -> list[CommandView]:
    """Commands that nobody is at, oldest first, one of each run."""
    return [CommandView.model_validate(dict(row)) for row in await db.fetch("claim_requests", limit, CLAIM_SECONDS)]


async def finish_request(db: Database, key: str, result: ChangeResult | None, refused: str | None) -> None:
    """Keep what came of a command."""
    await db.execute("finish_request", key, result.model_dump(mode="json") if result else None, refused)


async def postpone_request(db: Database, key: str, reason: str, seconds: float) -> None:
    """Try a command again later; the reason is shown meanwhile."""
    await db.execute("postpone_request", key, reason, seconds)
