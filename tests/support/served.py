"""An opened attempt whose model calls reach a real vLLM through gateway, store service and Postgres, all real.

from tests.support.served import served  # in a conftest, beside engine_socket
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from relight.llm_proxy.requests import seed_for
from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.wire import OpenedAttempt, OpenRequest
from tests.support.gateway import listening_gateway
from tests.support.seeds import seed_engine, seed_rollout, seed_run
from tests.support.store_service import TOKEN, store_service


@dataclass
class Served:
    """An attempt whose model calls are served, and the rows that come of them."""

    attempt: OpenedAttempt
    store: StoreClient
    database: Database

    @property
    def address(self) -> dict[str, Any]:
        """All that an agent's client is told."""
        return {"base_url": self.attempt.base_url, "api_key": self.attempt.token}

    async def rows(self, count: int) -> list[Any]:
        """The attempt's generations, once there are `count` of them and all are marked delivered."""
        async with asyncio.timeout(10):
            while True:
                rows = await self.database.pool.fetch("select * from generations order by call_number, choice")
                if len(rows) == count and all(row["delivered"] == "yes" for row in rows):
                    return rows
                await asyncio.sleep(0.02)  # the mark follows the answer; nothing tells when


@pytest.fixture
async def served(database: Database, engine_socket: Path) -> AsyncGenerator[Served]:
    """Store service, gateway and an opened attempt of a run whose engine is the real one, at version 0."""
    await seed_run(database)
    await seed_rollout(database, "ro")
    await seed_engine(database)
    await database.pool.execute("update engines set url = $1", f"unix:{engine_socket}")
    plan = {"sampling": {"temperature": 0.7, "max_tokens": 12, "top_k": -1, "agent_chooses": False}}
    await database.pool.execute("update steps set plan = $1", plan)
    async with AsyncExitStack() as stack:
        service = await PostgresStore.create(database, "http://127.0.0.1:1")
        url = await stack.enter_async_context(store_service(service, database))
        store = await stack.enter_async_context(StoreClient(url, TOKEN))
        client = await stack.enter_async_context(listening_gateway(store))
        asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
        attempt = (await store.open_attempt(asked)).attempt
        assert attempt is not None
        base_url = f"{client.origin}{urlsplit(attempt.base_url).path}"
        yield Served(attempt.model_copy(update={"base_url": base_url}), store, database)


def check_row(row: Any, call_number: int) -> None:
    """What every generation has."""
    assert row["prompt_token_ids"]
    assert 0 < len(row["token_ids"]) == len(row["logprobs"]) <= 12
    assert all(logprob <= 0 for logprob in row["logprobs"])
    assert (row["version_start"], row["version_end"]) == (0, 0)
    assert row["call_number"] == call_number
    assert row["seed"] == seed_for("7/1/0/0/1", call_number)
    assert row["sampling"]["temperature"] == 0.7
    assert row["complete"]
