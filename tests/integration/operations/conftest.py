"""A database that holds a finished run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from relight.store.database import Database
from tests.support.postgres import as_role, create_database
from tests.support.small_run import play_small_run


@pytest.fixture
async def finished(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Database]:
    """A database of its own with a finished run."""
    database = await Database.connect(as_role(await create_database(postgres_url)))
    await play_small_run(database, tmp_path)
    yield database
    await database.close()
