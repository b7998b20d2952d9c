"""What the tests of the gateway share: its parts, and what the scripted engine says."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.fake_engine import FakeEngine, fake_engine, text, token_ids
from tests.support.gateway import Client, ScriptedStore, listening_gateway


@asynccontextmanager
async def parts(tmp_path: Path, **options: Any) -> AsyncGenerator[tuple[Client, ScriptedStore, FakeEngine]]:
    """Store, engine at version 0 and gateway, with options of `open_gateway`."""
    store = ScriptedStore()
    async with fake_engine(tmp_path / "e1.sock") as engine:
        store.has_engine(engine.url)
        async with listening_gateway(store, **options) as client:
            yield client, store, engine


def content_of(answer: Any, choice: int = 0) -> str:
    """The text of an answer."""
    return answer["choices"][choice]["message"]["content"]


def said(seed: int, choice: int = 0, count: int = 8) -> str:
    """The text that the engine samples with a seed."""
    return "".join(map(text, token_ids(seed, choice, count)))
