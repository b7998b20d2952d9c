"""Resources and workers of the in-memory rollout store."""

from __future__ import annotations

import time
from typing import Any

from relight.store.base import LightningStore
from relight.store.memory.pages import find
from relight.store.memory.tables import Tables
from relight.store.queue import query_tables
from relight.store.queue.rows import checked_resources, new_resources_id, of_key
from relight.store.queue.rules import statistics_of
from relight.store.storable import optional_text, storable, storable_text
from relight.types.queries import ResourcesQuery, WorkerQuery
from relight.types.resources import NamedResources
from relight.types.store import UNSET, PaginatedResult, ResourcesUpdate, Unset, Worker


class MemoryCatalogue(LightningStore):
    """The part of `LightningStore` that knows nothing of rollouts."""

    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables or Tables()

    async def add_resources(self, resources: NamedResources, *, idempotency_key: str | None = None) -> ResourcesUpdate:
        key = optional_text(idempotency_key)
        resources_id = new_resources_id(key)
        with self.tables.lock:
            if kept := self.tables.versions.get((resources_id, 1)):
                return of_key(kept, resources, key).model_copy(deep=True)
            return await self.update_resources(resources_id, resources)

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        resources = checked_resources(resources)
        with self.tables.lock:
            return self.tables.set_resources(storable_text(resources_id), resources).model_copy(deep=True)

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        resources_id = storable_text(resources_id)
        with self.tables.lock:
            tables = self.tables
            snapshot = tables.versions.get((resources_id, version)) if version else tables.resources.get(resources_id)
            return snapshot and snapshot.model_copy(deep=True)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        with self.tables.lock:
            newest = self.tables.newest_resources
            return await self.get_resources_by_id(newest) if newest is not None else None

    async def _query_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        with self.tables.lock:
            return find(self.tables.resources.values(), query, query_tables.RESOURCES)

    async def _query_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        with self.tables.lock:
            return find(self.tables.workers.values(), query, query_tables.WORKERS)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        with self.tables.lock:
            worker = self.tables.workers.get(storable_text(worker_id))
            return worker and worker.model_copy(deep=True)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        stats, worker_id = statistics_of(heartbeat_stats), storable_text(worker_id)
        stored = stats and storable(stats, "heartbeat_stats")
        with self.tables.lock:
            worker = self.tables.workers.setdefault(worker_id, Worker(worker_id=worker_id))
            worker.last_heartbeat_time = time.time()
            if stored is not None:
                worker.heartbeat_stats = stored
            return worker.model_copy(deep=True)
