"""What access tokens permit: a role by the route, and a run by what a request names in its path and body.

Closed by default: a route that is not said here to be a viewer's or a runner's needs an admin, and a token of one run
is good for no route but those of `PATHS` and `CONTENT`, where everything that is named must belong to the run. One
thing that belongs to no run is permitted: a runner's report about itself.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.types import Scope

from relight.errors import ForbiddenError, PostgresError, UnauthorizedError
from relight.retrying import Every
from relight.store.access_tokens import ACCESS_PREFIX, Role
from relight.store.attempts.tokens import token_hash
from relight.store.database import Database
from relight.types.queries import RolloutQuery
from relight.types.wire import WorkerReport

Body = TypeVar("Body", bound=BaseModel)
GRANT_KEY = "relight.grant"
"""Key of the ASGI scope for what a request's token permits; absent for the administrator's own, and for agents'."""
CACHED_SECONDS = 2.0
MAX_CACHED = 4096
MAX_OWNED = 100_000
READING = frozenset({"GET", "HEAD"})
SEARCHES = re.compile(r"/v1/agl/(?:.+/search|waits/rollouts)")
"""POST routes that change nothing."""
RUNNERS = ("/v1/agl/", "/v1/relight/attempts/", "/v1/relight/gateway/", "/v1/relight/workers", "/v1/traces")
"""What a runner may write to."""
PATHS = (
    r"/v1/relight/runs/(?P<run>[^/]+)(?:/(?!fork$|replay$)[^/]+)?",
    r"/v1/relight/rollouts/(?P<rollout>[^/]+)(?:/generations)?",
    r"/v1/relight/attempts/(?P<attempt>[^/]+)/transcript",
    r"/v1/relight/commands/(?P<command>[^/]+)",
    r"/v1/agl/rollouts/(?P<rollout>[^/]+)(?:/.+)?",
)
"""Routes whose path names what they are about. A fork and a replay are other runs."""
READ_PATHS = (*PATHS, r"/v1/agl/resources/(?P<resources>[^/]+)")
"""Resources that a rollout of the run is pinned to may be read."""
CONTENT = re.compile(
    r"/v1/relight/(?:attempts/(?:open|finish|await-grading|heartbeat|spans)|gateway/[^/]+|workers|engines|events)"
    r"|/v1/agl/(?:rollouts(?:/search)?|spans(?:/.+)?|waits/rollouts)|/v1/traces"
    r"|/readyz|/v1/agl/health|/v1/agl/capabilities"
)
"""Routes whose body or query says what they are about, which `own_body` and `own_run` judge; some are about nothing."""
SEARCH_ROLLOUTS = "/v1/agl/rollouts/search"
"""With GET this is a rollout of that name."""
LISTS = ("items", "spans", "attempts")
"""Fields of bodies that hold several of what one may be about."""


@dataclass(frozen=True)
class Grant:
    """What a request's token permits."""

    digest: str
    name: str
    role: Role
    run: str | None
    """None: all runs."""
    path_checked: bool = False
    """The request's path names something of the run."""

    def refusal(self, what: str) -> ForbiddenError:
        """The error for what is not of its run."""
        return ForbiddenError(f"token {self.name} is good for run {self.run} alone, and {what} is not of it")


class Grants:
    """Looks access tokens up, remembers for 2 s those that are good, and judges requests by them."""

    def __init__(self, database: Database, *, recheck_seconds: float = 15.0) -> None:
        self._database = database
        self._recheck_seconds = recheck_seconds
        """How often it is looked whether the token of a long request is still good."""
        self._known: dict[str, tuple[float, Grant]] = {}
        self._owned: set[tuple[str, str, str]] = set()
        """Run, kind and id of what was found to belong together, which does not change."""

    async def admit(self, token: str, scope: Scope) -> None:
        """Let a request through whose token permits it; what the token permits is then in the scope.

        Raises:
            UnauthorizedError: there is no such token, or it has ended.
            ForbiddenError: it does not permit that.
        """
        if not token.startswith(ACCESS_PREFIX):
            raise UnauthorizedError("a valid token is needed: Authorization: Bearer TOKEN")
        grant = await self._find(token_hash(token))
        needed = _role_for(scope["method"], scope["path"])
        if not grant.role.permits(needed):
            raise ForbiddenError(f"token {grant.name} is a {grant.role}'s, and this needs one with --role {needed}")
        if grant.run is not None:
            grant = replace(grant, path_checked=await self._check_path(grant, scope["method"], scope["path"]))
        scope[GRANT_KEY] = grant

    async def _find(self, digest: str) -> Grant:
        until, grant = self._known.get(digest, (0.0, None))
        if grant and time.monotonic() < until:
            return grant
        row = await self._database.row("find_token", digest)
        if row is None:
            raise UnauthorizedError("there is no such token: `relight token create` makes one")
        if row["state"] != "valid":
            moment = row["revoked_at"] or row["expires_at"]
            ended = f"{'was revoked' if row['revoked_at'] else 'expired'} at {moment:%Y-%m-%d %H:%M:%S} UTC"
            raise UnauthorizedError(f"token {row['name']} {ended}: `relight token create` makes another")
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        found = Grant(digest, row["name"], Role(row["role"]), row["run"])
        left = CACHED_SECONDS if row["seconds_left"] is None else min(CACHED_SECONDS, row["seconds_left"])
        self._known[digest] = (time.monotonic() + left, found)
        return found

    async def ended(self, scope: Scope) -> None:
        """Return once the token of a long request is good no more."""
        grant: Grant | None = scope.get(GRANT_KEY)
        if grant is None:
            await asyncio.Event().wait()
            return
        async for _ in Every(self._recheck_seconds, at_once=False):
            try:
                await self._find(grant.digest)
            except UnauthorizedError:
                return
            except PostgresError:  # it is asked again
                continue

    async def _check_path(self, grant: Grant, method: str, path: str) -> bool:
        """Whether the path names something, which is of the run then."""
        if CONTENT.fullmatch(path) and (method == "POST" or path != SEARCH_ROLLOUTS):
            return False
        for pattern in READ_PATHS if method in READING else PATHS:
            if found := re.fullmatch(pattern, path):
                for kind, name in found.groupdict().items():
                    await self.require(grant, kind, {name})
                return True
        raise grant.refusal(f"what {path} is about")

    async def require(self, grant: Grant, kind: str, ids: Collection[str]) -> None:
        """Refuse what is not of the token's run.

        Raises:
            ForbiddenError: names one of them.
        """
        if foreign := await self.foreign(grant, kind, ids):
            raise grant.refusal(f"{kind} {min(foreign)}")

    async def foreign(self, grant: Grant, kind: str, ids: Collection[str]) -> set[str]:
        """Those that are not of the token's run."""
        run = grant.run or ""
        if kind == "run":
            return {name for name in ids if name != run}
        asked = [name for name in ids if (run, kind, name) not in self._owned]
        if not asked:
            return set()
        found = {row["id"] for row in await self._database.fetch("not_of_run", run, kind, asked)}
        if len(self._owned) + len(asked) > MAX_OWNED:
            self._owned.clear()
        self._owned.update((run, kind, name) for name in asked if name not in found)
        return found


def _role_for(method: str, path: str) -> Role:
    if method in READING or (method == "POST" and SEARCHES.fullmatch(path)):
        return Role.VIEWER
    return Role.RUNNER if path.startswith(RUNNERS) else Role.ADMIN


def grant_of_run(request: Request) -> Grant | None:
    """What the token of a request permits, where it is good for one run alone."""
    grant: Grant | None = request.scope.get(GRANT_KEY)
    return grant if grant and grant.run is not None else None


def own_run(request: Request, run: str | None) -> str | None:
    """The run that a query asks for; with a token of one run it is that.

    Raises:
        ForbiddenError: it is another.
    """
    grant = grant_of_run(request)
    if grant is None:
        return run
    if run not in (None, grant.run):
        raise grant.refusal(f"run {run}")
    return grant.run


async def own_body(request: Request, body: Body) -> Body:
    """A body whose rollouts and attempts are all of the token's run; a search for rollouts finds those alone.

    Raises:
        ForbiddenError: one is not, or none is named.
    """
    grant = grant_of_run(request)
    if grant is None:
        return body
    if isinstance(body, RolloutQuery):
        return body.model_copy(update={"run": own_run(request, body.run)})
    rollouts, attempts = _named(body)
    report = isinstance(body, WorkerReport) and body.kind == "runner"
    if not (rollouts or attempts or grant.path_checked or report):
        raise grant.refusal("what names no rollout")
    grants: Grants = request.app.state.grants
    await grants.require(grant, "rollout", rollouts)
    await grants.require(grant, "attempt", attempts)
    return body


async def foreign_rollouts(request: Request, rollout_ids: Collection[str]) -> set[str]:
    """Those that are not of the token's run."""
    grant = grant_of_run(request)
    grants: Grants = request.app.state.grants
    return await grants.foreign(grant, "rollout", set(rollout_ids)) if grant else set()


def _named(body: Any) -> tuple[set[str], set[str]]:
    parts: list[Any] = [body, *(part for name in LISTS for part in getattr(body, name, ()))]
    rollouts: set[Any] = {getattr(part, "rollout_id", None) for part in parts} | {*getattr(body, "rollout_ids", ())}
    attempts: set[Any] = {getattr(part, "attempt_id", None) for part in parts} - {"latest"}
    return rollouts - {None}, attempts - {None}
