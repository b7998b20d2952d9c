"""The attempt stores behind one fixture: in memory and on Postgres, directly and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.memory.lightning import InMemoryLightningStore
from tests.support.postgres import fresh_database
from tests.support.store_kit import MemoryKit, PostgresKit, StoreKit
from tests.support.store_service import TOKEN, memory_service, store_service


@pytest.fixture
async def postgres_store(database: Database) -> PostgresStore:
    """The store on a fresh database."""
    return await PostgresStore.create(database, "http://gateway")


@pytest.fixture
async def postgres_kit(database: Database, postgres_store: PostgresStore) -> PostgresKit:
    """Postgres alone, with the run `demo` and the rollout `r1`."""
    kit = PostgresKit(database, postgres_store)
    await kit.start()
    await kit.add_rollout("r1")
    return kit


@pytest.fixture(params=["memory", "postgres", "http", "memory-http"])
async def kit(request: pytest.FixtureRequest, postgres_url: str) -> AsyncGenerator[StoreKit]:
    """Each store in turn, with the run `demo` and the rollout `r1`."""
    async with make_kit(request.param, postgres_url) as kit:
        await kit.start()
        await kit.add_rollout("r1")
        yield kit


@asynccontextmanager
async def make_kit(kind: str, postgres_url: str) -> AsyncGenerator[StoreKit]:
    """A store of that kind, empty."""
    if kind == "memory":
        yield MemoryKit()
        return
    if kind == "memory-http":
        kit, outside = MemoryKit(), InMemoryLightningStore()
        kit.memory.tables = outside.tables
        async with memory_service(outside) as url, StoreClient(url, TOKEN, retry_seconds=5) as kit.store:
            yield kit
        return
    async with fresh_database(postgres_url) as database:
        store = await PostgresStore.create(database, "http://gateway")
        if kind == "postgres":
            yield PostgresKit(database, store)
            return
        async with store_service(store, database) as url, StoreClient(url, TOKEN, retry_seconds=5) as client:
            yield PostgresKit(database, client)
