"""Fixtures for all tests."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from relight.store.database import Database
from tests.support.examples import load_profiles
from tests.support.postgres import fresh_database_url, postgres_server

pytest_plugins = ["relight.testing.plugin"]

load_profiles()


@pytest.fixture(scope="session")
def postgres_url() -> Generator[str]:
    """A real Postgres for the session; started by the first test that asks for it.

    Not in pytest's folder: as root, Postgres runs as another user, and any pytest that starts closes that folder to it.
    """
    with tempfile.TemporaryDirectory(prefix="relight-postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with postgres_server(Path(folder)) as url:
            yield url


@pytest.fixture
async def database_url(postgres_url: str) -> AsyncGenerator[str]:
    """A migrated database without rows, for the services' role."""
    async with fresh_database_url(postgres_url) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    """A pool on a migrated database without rows."""
    pool = await Database.connect(database_url, max_size=8)
    yield pool
    await pool.close()
