"""Access tokens of the store service: rows with a role, an end, and a run or all. What is stored of one is its hash."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from relight.errors import ConfigError, ConflictError, NotFoundError
from relight.store.attempts.attempt_tokens import ACCESS_PREFIX, token_hash
from relight.store.database import Database
from relight.types.names import RUN_NAME

TOKEN_BYTES = 32
RUNNER_NAME = "relight-runner"
"""The name of the token that runners derive from the admin token."""
NEVER = "never"
UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class Role(StrEnum):
    """What a token permits; all permit what a viewer's does, and an admin's permits everything."""

    VIEWER = "viewer"
    """Reading."""
    RUNNER = "runner"
    """What runners, exporters of spans and programs on `/v1/agl` do."""
    GATEWAY = "gateway"
    """What gateways do: to record model calls."""
    ADMIN = "admin"
    """Everything, commands to runs among it."""


class AccessToken(BaseModel):
    """A token as it is shown: without its text."""

    model_config = ConfigDict(extra="ignore")

    name: str
    role: Role
    run: str | None
    """None: all runs."""
    agents: list[str] | None
    """None: all agents."""
    state: Literal["valid", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


async def create_token(
    database: Database,
    name: str,
    role: Role,
    *,
    run: str | None = None,
    agents: Sequence[str] = (),
    seconds: float | None = None,
) -> str:
    """Make a token, which ends after so many seconds or never; its text is known to the caller alone.

    Raises:
        ConfigError: the name, or the run's, is none, or agents are given for another role than a runner's.
        ConflictError: a token of that name is there.
    """
    for field, value in (("name", name), ("run", run)):
        if value is not None and not RUN_NAME.fullmatch(value):
            raise ConfigError(f"{field}: {value!r} is no name; use at most 63 of a-z, 0-9, '.', '_' and '-'")
    if agents and role is not Role.RUNNER:
        raise ConfigError(f"agent: only a runner's token can be limited to agents, and {name} is to be a {role}'s")
    text = ACCESS_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    columns = (name, role, run, [*agents] or None, seconds)
    if await database.value("create_token", token_hash(text), *columns) is None:
        raise ConflictError(f"there is a token {name}; take another name, or end it by `relight token revoke {name}`")
    return text


async def list_tokens(database: Database) -> list[AccessToken]:
    """All tokens, newest first."""
    return await database.models(AccessToken, "list_tokens")


async def revoke_token(database: Database, name: str) -> None:
    """End the token of that name; services refuse it within 2 s.

    Raises:
        NotFoundError: there is none, or it is revoked already.
    """
    if await database.value("revoke_token", name) is None:
        raise NotFoundError(f"there is no token {name} that is not revoked; `relight token list` shows all")


def parse_lifetime(text: str) -> float | None:
    """Seconds of `90m`, `12h`, `7d` or `4w`; None of `never`.

    Raises:
        ConfigError: it is none of these.
    """
    if text.strip().lower() == NEVER:
        return None
    match = re.fullmatch(r"(\d{1,6})\s*([mhdw])", text.strip().lower())
    if match is None or not int(match[1]):
        raise ConfigError(f"expires: a time such as 90m, 12h, 7d or 4w is needed, or {NEVER}; given {text!r}")
    return int(match[1]) * UNITS[match[2]]
