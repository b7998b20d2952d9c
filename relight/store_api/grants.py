"""What tokens permit: a role by the route, and a run or agents by what a request names in its path and body.

Closed by default: what `ROUTES` does not say needs an admin, and a token of one run is good for no route but those of
`PATHS` and `CONTENT`, where everything that is named must belong to the run. One thing that belongs to no run is
permitted: a runner's report about itself. A token of some agents is good for no route but `OF_AGENTS`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.types import Scope

from relight.errors import ForbiddenError, PostgresError, UnauthorizedError
from relight.retrying import Every
from relight.store.access_tokens import RUNNER_NAME, Role
from relight.store.attempts.attempt_tokens import ACCESS_PREFIX, token_hash
from relight.store.database import Database
from relight.store.queue.rows import queue_of
from relight.store_api.agl_bodies import EnqueueRequest
from relight.types.queries import RolloutQuery
from relight.types.store import EnqueueRolloutRequest
from relight.types.wire import WorkerReport

Body = TypeVar("Body", bound=BaseModel)
GRANT_KEY = "relight.grant"
"""Key of the ASGI scope for what a request's token permits; absent for the administrator's own, and for agents'."""
CACHED_SECONDS = 2.0
MAX_CACHED = 4096
MAX_OWNED = 100_000
READING = frozenset({"GET", "HEAD"})
WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Principal(StrEnum):
    """Who sends a request that no access token came with."""

    ANYONE = "anyone"
    ATTEMPT = "attempt"
    """An agent, with the token of its attempt: for its own spans."""


ADMINS: frozenset[Role | Principal] = frozenset({Role.ADMIN})
READERS: frozenset[Role | Principal] = frozenset({Role.VIEWER, Role.RUNNER, Role.GATEWAY})
ROUTES: tuple[tuple[frozenset[str], re.Pattern[str], frozenset[Role | Principal]], ...] = (
    (READING, re.compile(r"/healthz"), frozenset({Principal.ANYONE})),
    (READING, re.compile(r"/.*"), READERS),
    (frozenset({"POST"}), re.compile(r"/v1/agl/(?:.+/search|waits/rollouts)"), READERS),
    (WRITING, re.compile(r"/v1/traces"), frozenset({Role.RUNNER, Principal.ATTEMPT})),
    (WRITING, re.compile(r"/v1/agl/.*|/v1/relight/attempts/.*"), frozenset({Role.RUNNER})),
    (WRITING, re.compile(r"/v1/relight/workers"), frozenset({Role.RUNNER, Role.GATEWAY})),
    (WRITING, re.compile(r"/v1/relight/gateway/.*"), frozenset({Role.GATEWAY})),
)
"""Methods, paths, and whom they are for beside an admin. The first match counts; any other route is an admin's."""
PATHS = (
    r"/v1/relight/runs/(?P<run>[^/]+)(?:/(?!fork$|replay$)[^/]+)?",
    r"/v1/relight/rollouts/(?P<rollout>[^/]+)(?:/generations)?",
    r"/v1/relight/attempts/(?P<attempt>[^/]+)/transcript",
    r"/v1/relight/commands/(?P<command>[^/]+)",
    r"/v1/agl/rollouts/(?P<rollout>[^/]+)(?:/.+)?",
)
"""Routes whose path names an object. A fork and a replay are other runs."""
READ_PATHS = (*PATHS, r"/v1/agl/resources/(?P<resources>[^/]+)")
"""Resources that a rollout of the run is pinned to may be read."""
CONTENT = re.compile(
    r"/v1/relight/(?:attempts/(?:open|finish|await-grading|heartbeat|spans)|gateway/[^/]+|workers|engines|events)"
    r"|/v1/agl/(?:queues/rollouts/enqueue|rollouts(?:/search)?|spans(?:/.+)?|waits/rollouts)|/v1/traces"
    r"|/readyz|/v1/agl/health|/v1/agl/capabilities"
)
"""Routes whose body or query names objects, which `own_body` and `own_run` check; some name none."""
OF_AGENTS = re.compile(
    r"/v1/relight/attempts/(?:open|finish|await-grading|heartbeat|spans|[^/]+/transcript)|/v1/relight/workers|/v1/traces"
    r"|/readyz"
)
SEARCH_ROLLOUTS = "/v1/agl/rollouts/search"
"""With GET this is a rollout of that name."""
LISTS = ("items", "spans", "attempts", "rollouts")
"""Fields of bodies that hold several objects."""


@dataclass(frozen=True)
class Grant:
    """What a request's token permits."""

    digest: str
    name: str
    role: Role
    run: str | None
    """None: all runs."""
    agents: tuple[str, ...] | None = None
    """None: all agents."""
    path_checked: bool = False
    """The request's path names something within the token's limits."""

    @property
    def limited(self) -> bool:
        """Whether it is good for one run or for some agents alone."""
        return self.run is not None or self.agents is not None

    def error_for(self, what: str) -> ForbiddenError:
        """The error for an object that is beyond the token's limits."""
        agents = f"agents {', '.join(self.agents)}" if self.agents else ""
        limits = " and to ".join(filter(None, (self.run and f"run {self.run}", agents)))
        return ForbiddenError(f"token {self.name} is limited to {limits}, and {what} does not belong to it")


class Grants:
    """Looks up access tokens, caches valid ones for 2 s, and checks requests against them."""

    def __init__(self, database: Database, runner_token: str | None = None, *, recheck_seconds: float = 15.0) -> None:
        self._database = database
        self._runner_digest = token_hash(runner_token) if runner_token else None
        """Of the token that runners derive from the admin token; its row is made when it first comes."""
        self._recheck_seconds = recheck_seconds
        """The interval at which the token of a long request is checked again."""
        self._known: dict[str, tuple[float, Grant]] = {}
        self._owned: set[tuple[str, str, str]] = set()
        """Token, kind and id of objects that were found to be within its limits, which does not change."""

    async def admit(self, token: str, scope: Scope) -> None:
        """Let a request through whose token permits it; what the token permits is then in the scope.

        Raises:
            UnauthorizedError: there is no such token, or it has ended.
            ForbiddenError: it does not permit that.
        """
        if not token.startswith(ACCESS_PREFIX):
            raise UnauthorizedError("a valid token is needed: Authorization: Bearer TOKEN")
        grant = await self._find(token_hash(token))
        permitted = [role for role in principals_of(scope["method"], scope["path"]) if isinstance(role, Role)]
        if grant.role not in (*permitted, Role.ADMIN):
            needed = " or ".join(sorted({*permitted, Role.ADMIN} - {Role.VIEWER}))
            raise ForbiddenError(f"token {grant.name} is a {grant.role}'s, and this needs one with --role {needed}")
        if grant.limited:
            grant = replace(grant, path_checked=await self._check_path(grant, scope["method"], scope["path"]))
        scope[GRANT_KEY] = grant

    async def _find(self, digest: str) -> Grant:
        until, grant = self._known.get(digest, (0.0, None))
        if grant and time.monotonic() < until:
            return grant
        row = await self._database.row("find_token", digest)
        if row is None and digest == self._runner_digest:
            async with self._database.transaction() as tx:
                await tx.execute("revoke_token", RUNNER_NAME)  # that of an earlier admin token
                await tx.execute("register_runner_token", digest, RUNNER_NAME)
            row = await self._database.row("find_token", digest)
        if row is None:
            raise UnauthorizedError("there is no such token: `relight token create` makes one")
        if row["state"] != "valid":
            moment = row["revoked_at"] or row["expires_at"]
            ended = f"{'was revoked' if row['revoked_at'] else 'expired'} at {moment:%Y-%m-%d %H:%M:%S} UTC"
            raise UnauthorizedError(f"token {row['name']} {ended}: `relight token create` makes another")
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        agents = tuple(row["agents"]) if row["agents"] else None
        found = Grant(digest, row["name"], Role(row["role"]), row["run"], agents)
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
        """Whether the path names something, which is within the token's limits then."""
        if grant.agents and not OF_AGENTS.fullmatch(path):
            raise grant.error_for(f"what {path} is about")
        if CONTENT.fullmatch(path) and (method == "POST" or path != SEARCH_ROLLOUTS):
            return False
        for pattern in READ_PATHS if method in READING else PATHS:
            if found := re.fullmatch(pattern, path):
                for kind, name in found.groupdict().items():
                    await self.require(grant, kind, {name})
                return True
        raise grant.error_for(f"what {path} is about")

    async def require(self, grant: Grant, kind: str, ids: Collection[str]) -> None:
        """Refuse what is beyond the token's limits.

        Raises:
            ForbiddenError: names one of them.
        """
        if foreign := await self.foreign(grant, kind, ids):
            raise grant.error_for(f"{kind} {min(foreign)}")

    async def foreign(self, grant: Grant, kind: str, ids: Collection[str]) -> set[str]:
        """Those that are beyond the token's limits."""
        if kind == "run":
            return {name for name in ids if name != grant.run}
        asked = [name for name in ids if (grant.digest, kind, name) not in self._owned]
        if not asked:
            return set()
        agents = None if grant.agents is None else [*grant.agents]
        found = {row["id"] for row in await self._database.fetch("out_of_scope", grant.run, agents, kind, asked)}
        if len(self._owned) + len(asked) > MAX_OWNED:
            self._owned.clear()
        self._owned.update((grant.digest, kind, name) for name in asked if name not in found)
        return found


def principals_of(method: str, path: str) -> frozenset[Role | Principal]:
    """Whom a route is for, beside an admin."""
    return next((found for methods, pattern, found in ROUTES if method in methods and pattern.fullmatch(path)), ADMINS)


def limited_grant(request: Request) -> Grant | None:
    """What the token of a request permits, where it is limited to a run or to agents."""
    grant: Grant | None = request.scope.get(GRANT_KEY)
    return grant if grant and grant.limited else None


def own_run(request: Request, run: str | None) -> str | None:
    """The run that a query asks for; with a token of one run it is that.

    Raises:
        ForbiddenError: it is another.
    """
    grant = limited_grant(request)
    if grant is None:
        return run
    if run not in (None, grant.run):
        raise grant.error_for(f"run {run}")
    return grant.run


async def own_body(request: Request, body: Body) -> Body:
    """A body whose rollouts, attempts and resources are all of the token's run; a search for rollouts finds those
    alone, and new rollouts belong to it.

    Raises:
        ForbiddenError: one is not, or none is named.
    """
    grant = limited_grant(request)
    if grant is None:
        return body
    if isinstance(body, RolloutQuery):
        return body.model_copy(update={"run": own_run(request, body.run)})
    await own_resources(request, *_values("resources_id", body))
    if isinstance(body, EnqueueRequest):
        await _own_queues(request, grant, body.rollouts)
        return body.model_copy(update={"rollouts": [_own_rollout(grant, rollout) for rollout in body.rollouts]})
    rollouts = _values("rollout_id", body) | {*getattr(body, "rollout_ids", ())}
    attempts = (_values("attempt_id", body) - {"latest"}) | {*getattr(body, "attempt_ids", ())}
    grants: Grants = request.app.state.grants
    report = body if isinstance(body, WorkerReport) and body.kind == "runner" else None
    if report:
        await grants.require(grant, "worker", {report.worker_id})
        rollouts |= _values("current_rollout_id", report)
    if not (rollouts or attempts or grant.path_checked or report):
        raise grant.error_for("what names no rollout")
    await grants.require(grant, "rollout", rollouts)
    await grants.require(grant, "attempt", attempts)
    return body


async def _own_queues(request: Request, grant: Grant, rollouts: Iterable[EnqueueRolloutRequest]) -> None:
    """Refuse rollouts for runners that serve neither the agent nor the grader of the token's run."""
    dispatches = [one.dispatch for one in rollouts if one.dispatch is not None and one.dispatch.by == "workflow"]
    grants: Grants = request.app.state.grants
    if foreign := await grants.foreign(grant, "queue", set(map(queue_of, dispatches))):
        raise ForbiddenError(
            f"dispatch: task queue {min(foreign)!r} is not that of the agent or the grader of run {grant.run}, for "
            f"which alone token {grant.name} is good: name that agent, or leave `dispatch` out"
        )


def _own_rollout(grant: Grant, rollout: EnqueueRolloutRequest) -> EnqueueRolloutRequest:
    if rollout.run not in (None, grant.run):
        raise ForbiddenError(
            f"run: {rollout.run!r} is not the run of token {grant.name}, which is good for run {grant.run} alone: "
            "leave `run` out, or use a token of that run"
        )
    return rollout.model_copy(update={"run": grant.run})


async def own_resources(request: Request, *ids: str) -> None:
    """Refuse resources that no rollout of the token's run is pinned to, and that are not the run's own.

    Raises:
        ForbiddenError: names some.
    """
    grant = limited_grant(request)
    if grant is None:
        return
    grants: Grants = request.app.state.grants
    if foreign := await grants.foreign(grant, "resources", ids):
        raise ForbiddenError(
            f"resources_id: {min(foreign)!r} is not of run {grant.run}, for which alone token {grant.name} is good: "
            "name resources of that run, or leave `resources_id` out"
        )


async def foreign_rollouts(request: Request, rollout_ids: Collection[str]) -> set[str]:
    """Those that are not of the token's run."""
    grant = limited_grant(request)
    grants: Grants = request.app.state.grants
    return await grants.foreign(grant, "rollout", set(rollout_ids)) if grant else set()


def _values(name: str, body: Any) -> set[str]:
    """What a body and its parts name by a field."""
    parts: list[Any] = [body, *(part for field in LISTS for part in getattr(body, field, ()))]
    values: set[Any] = {getattr(part, name, None) for part in parts}
    return values - {None}
