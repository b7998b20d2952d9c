"""One booted stack for all tests of poison: real servers and runner, a deterministic engine and trainer."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any
from unittest import mock

import pytest_asyncio

from relight.stack.embedded import EmbeddedStack
from relight.store.database import connect_database
from relight.temporal.connection import connect_temporal
from tests.chaos.parts import weights
from tests.chaos.stack import open_folder
from tests.integration.poison.kit import AGENTS, NOTED, PARTS, PoisonStack


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def poison() -> AsyncGenerator[PoisonStack]:
    with open_folder() as folder:
        weights.make_model(folder / "policy")
        references = [f"{PARTS / 'agents.py'}:{name}" for name in AGENTS]
        with mock.patch.dict(
            os.environ,
            {
                "RELIGHT_ENGINE_MODULE": "tests.integration.poison.parts.engine",
                "RELIGHT_TRAINER_MODULE": "tests.chaos.parts.trainer",
                "RELIGHT_GATEWAY_CALL_SECONDS": "15",
            },
        ):
            (folder / NOTED).mkdir()
            options: dict[str, Any] = {
                "flags": {"data_root": folder},
                "runner_flags": ["--allow-path", str(folder / NOTED)],
            }
            async with EmbeddedStack(folder / "home", agents=references, **options) as stack:
                await stack.wait_ready()
                database = await connect_database(stack.settings)
                try:
                    yield PoisonStack(stack, database, await connect_temporal(stack.settings), folder)
                finally:
                    await database.close()
