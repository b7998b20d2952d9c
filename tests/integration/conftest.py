"""Fixtures of tests that need real servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.support.temporal import temporal_dev_server, terminate_open_workflows


@pytest.fixture(scope="session")
def shared_temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real Temporal server for the session."""
    with temporal_dev_server(tmp_path_factory.mktemp("temporal")) as address:
        yield address


@pytest.fixture
async def temporal_address(shared_temporal_address: str) -> AsyncGenerator[str]:
    """The session's Temporal server, without open workflows: the workers of a test would run those of another."""
    client = await Client.connect(shared_temporal_address)
    await terminate_open_workflows(client)
    yield shared_temporal_address
    await terminate_open_workflows(client)


@pytest.fixture
async def temporal(temporal_address: str) -> Client:
    """A client of the session's Temporal server."""
    return await Client.connect(temporal_address, data_converter=pydantic_data_converter)
