"""The rollout store of the routes: made over Postgres on first use, since making it needs an event loop."""

from __future__ import annotations

import asyncio

from relight.observability.metrics import measured
from relight.store.base import LightningStore
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.spans.ingest import SpanIngest


class RolloutStore:
    """Returns the store when it is called."""

    def __init__(self, database: Database, spans: SpanIngest, store: LightningStore | None = None) -> None:
        self._database = database
        self._spans = spans
        self._store = measured(store) if store else None
        self._own: PostgresLightningStore | None = None
        self._making = asyncio.Lock()

    async def __call__(self) -> LightningStore:
        """The store."""
        if self._store is None:
            async with self._making:
                if self._store is None:
                    self._own = await PostgresLightningStore.create(self._database, spans=self._spans)
                    self._store = measured(self._own)
        return self._store

    async def aclose(self) -> None:
        """Finish what is under way, where the store was made here."""
        if self._own:
            await self._own.aclose()
