"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from relight.store.database import Database
from tests.support.postgres import create_database, drop_database, postgres_server
from tests.support.temporal import temporal_dev_server


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real Postgres for the session; started by the first test that asks for it."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture
async def database_url(postgres_url: str) -> AsyncGenerator[str]:
    """A fresh, migrated database."""
    url = await create_database(postgres_url)
    yield url
    await drop_database(postgres_url, url)


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    """A pool on a fresh, migrated database."""
    pool = await Database.connect(database_url, max_size=8)
    yield pool
    await pool.close()


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real Temporal server for the session."""
    with temporal_dev_server(tmp_path_factory.mktemp("temporal")) as address:
        yield address


@pytest.fixture
async def temporal(temporal_address: str) -> Client:
    """A client of the session's Temporal server."""
    return await Client.connect(temporal_address, data_converter=pydantic_data_converter)
