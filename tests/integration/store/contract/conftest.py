"""The rollout stores behind one fixture: in memory and on Postgres, directly and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from relight.store.base import LightningStore
from tests.support.lightning_kit import KINDS, LightningKit, ServedKit, lightning_kit


@asynccontextmanager
async def empty_kit(request: pytest.FixtureRequest) -> AsyncGenerator[LightningKit]:
    """A store of the kind that is asked for, empty."""
    url = None if request.param.startswith("memory") else request.getfixturevalue("postgres_url")
    async with lightning_kit(request.param, url) as kit:
        yield kit


@pytest.fixture(params=KINDS)
async def kit(request: pytest.FixtureRequest) -> AsyncGenerator[LightningKit]:
    """Each store in turn, empty."""
    async with empty_kit(request) as kit:
        yield kit


@pytest.fixture
def store(kit: LightningKit) -> LightningStore:
    """Its store."""
    return kit.store


@pytest.fixture(params=[kind for kind in KINDS if "http" in kind])
async def service(request: pytest.FixtureRequest) -> AsyncGenerator[ServedKit]:
    """The service over each store, for what concerns the wire alone."""
    async with empty_kit(request) as kit:
        assert isinstance(kit, ServedKit)
        yield kit
