"""A store service with two attempts, and a client of its OTLP route."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from aiohttp import ClientSession

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from tests.support.otlp import OtlpClient
from tests.support.seeds import seed_attempt, seed_rollout
from tests.support.store_service import TOKEN, store_service


@pytest.fixture
async def client(database: Database) -> AsyncGenerator[OtlpClient]:
    """With the admin token; there are the rollouts r1 and r2 with the attempts a1 and a2."""
    for number in (1, 2):
        await seed_rollout(database, f"r{number}", None)
        await seed_attempt(database, f"r{number}", f"a{number}")
    store = await PostgresStore.create(database, "http://gateway")
    async with store_service(store, database) as url, ClientSession() as session:
        yield OtlpClient(session, url, TOKEN)
