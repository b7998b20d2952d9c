"""What the requests of agents under way may hold of the store service, and what is left for others meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from relight.store_api.agent_tokens import AGENT_KEY, AuthenticatedAttempt
from relight.store_api.request_budgets import (
    MAX_AGENT_BYTES,
    MAX_ATTEMPT_BYTES,
    MAX_ATTEMPT_REQUESTS,
    RequestBudgets,
)

BODY_BYTES = 64 * 2**20


class Requests:
    """Requests that hold their bodies until `leave` is set; the first part of each has come."""

    def __init__(self) -> None:
        self.budgets = RequestBudgets(BODY_BYTES)
        self.leave = asyncio.Event()
        self._tasks: list[asyncio.Task[int]] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] == "http.disconnect":
            return
        await self.leave.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def _send(self, attempt: str | None, size: int) -> int:
        sent: list[Any] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": bytes(size), "more_body": True}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", AGENT_KEY: AuthenticatedAttempt("ro", attempt, graded=False) if attempt else None}
        await self.budgets.admit(self._app, scope, receive, send)
        return sent[0]["status"]

    async def begin(self, attempt: str | None, size: int) -> int | None:
        """Begin a request; its status if it was refused."""
        task = asyncio.create_task(self._send(attempt, size))
        self._tasks.append(task)
        await asyncio.sleep(0.01)
        return task.result() if task.done() else None

    async def end(self) -> list[int]:
        """Let all end; their statuses."""
        self.leave.set()
        return await asyncio.gather(*self._tasks)


async def test_an_attempts_bodies_take_no_more_than_its_own_part() -> None:
    requests = Requests()
    assert await requests.begin("a", MAX_ATTEMPT_BYTES) is None
    assert await requests.begin("a", 1) == 503
    assert await requests.begin("b", 1000) is None
    assert await requests.begin(None, BODY_BYTES) is None
    assert sorted(await requests.end()) == [200, 200, 200, 503]
    assert await requests.begin("a", MAX_ATTEMPT_BYTES) == 200


async def test_a_body_of_an_agent_is_refused_that_is_larger_than_its_attempts_part() -> None:
    requests = Requests()
    assert await requests.begin("a", MAX_ATTEMPT_BYTES + 1) == 413
    assert await requests.begin(None, BODY_BYTES + 1) == 413


async def test_requests_that_sent_nothing_yet_take_no_bytes_and_are_counted_by_attempt() -> None:
    requests = Requests()
    assert [await requests.begin("a", 0) for _ in range(MAX_ATTEMPT_REQUESTS + 1)] == [None] * MAX_ATTEMPT_REQUESTS + [
        503
    ]
    assert await requests.begin("b", 1000) is None
    assert await requests.begin(None, BODY_BYTES) is None


async def test_all_agents_together_leave_memory_for_the_platform() -> None:
    requests = Requests()
    many = MAX_AGENT_BYTES // MAX_ATTEMPT_BYTES
    assert [await requests.begin(f"a{n}", MAX_ATTEMPT_BYTES) for n in range(many)] == [None] * many
    assert await requests.begin("another", 1000) == 503
    assert await requests.begin(None, BODY_BYTES) is None
    await requests.end()
