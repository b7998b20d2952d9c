"""A service over two runs, and who asks it with which token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from fastapi.routing import APIRoute

from relight.store.access_tokens import Role, create_token
from relight.store.database import Database
from relight.store_api.app import create_app
from relight.store_api.backends import PostgresBackend
from relight.types.names import RUNNER_QUEUE, runner_queue
from relight.types.wire import OpenedAttempt
from tests.support.store_service import TOKEN

OTHER = "other"
OWN_QUEUE = runner_queue(RUNNER_QUEUE, "calculator")
WRITING = ("POST", "PUT", "DELETE", "PATCH")
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass
class Bench:
    """A service over two runs, with an attempt of each."""

    database: Database
    session: aiohttp.ClientSession
    url: str
    mine: OpenedAttempt
    foreign: OpenedAttempt

    async def token(
        self, role: str = "viewer", run: str | None = None, seconds: float | None = 3600, agents: Sequence[str] = ()
    ) -> str:
        count = await self.database.pool.fetchval("select count(*) from tokens")
        options: dict[str, Any] = {"run": run, "agents": agents, "seconds": seconds}
        return await create_token(self.database, f"t{count}", Role(role), **options)

    async def ask(
        self, token: str, method: str, path: str, body: Any = None, data: bytes | None = None
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} | (PROTOBUF if data else {})
        options: dict[str, Any] = {"data": data} if data else {"json": body}
        async with self.session.request(method, self.url + path, headers=headers, **options) as answer:
            if answer.content_type == "text/event-stream":
                return answer.status, ""
            return answer.status, await answer.text(errors="replace")


def all_routes(database: Database) -> set[tuple[str, str]]:
    """Every route of the app, with something in the place of its parameters."""
    app = create_app(PostgresBackend(None, database), token=TOKEN)  # type: ignore[arg-type]
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return {(method, _filled(route.path)) for route in routes for method in route.methods} - {("GET", "/healthz")}


def _filled(path: str) -> str:
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))
