"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest
from hypothesis import HealthCheck, settings

from relight.store.database import Database
from tests.support.postgres import fresh_database_url, postgres_server

# How long an example takes says more about the machine than about the code.
settings.register_profile("relight", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relight")


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real Postgres for the session; started by the first test that asks for it."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture
async def database_url(postgres_url: str) -> AsyncGenerator[str]:
    """A migrated database without rows."""
    async with fresh_database_url(postgres_url) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    """A pool on a migrated database without rows."""
    pool = await Database.connect(database_url, max_size=8)
    yield pool
    await pool.close()
