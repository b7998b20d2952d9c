"""The three rollout stores behind one fixture."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from relight.store.base import LightningStore
from tests.support.lightning_kit import KINDS, HttpLightningKit, LightningKit, lightning_kit


@pytest.fixture(params=KINDS)
async def kit(request: pytest.FixtureRequest) -> AsyncGenerator[LightningKit]:
    """Each store in turn, empty."""
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    async with lightning_kit(request.param, url) as kit:
        yield kit


@pytest.fixture
def store(kit: LightningKit) -> LightningStore:
    """Its store."""
    return kit.store


@pytest.fixture
async def service(postgres_url: str) -> AsyncGenerator[HttpLightningKit]:
    """The service, for what concerns the wire alone."""
    async with lightning_kit("http", postgres_url) as kit:
        assert isinstance(kit, HttpLightningKit)
        yield kit
