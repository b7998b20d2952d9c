"""Resources and workers of the in-memory rollout store."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from relight.store import lightning_memory_pages as pages
from relight.store.lightning_memory_pages import contains, equals, matching, one_of
from relight.store.lightning_memory_rows import Tables
from relight.store.lightning_rows import new_id
from relight.store.storable import storable
from relight.types.resources import NamedResources
from relight.types.store import FilterLogic, PaginatedResult, ResourcesUpdate, SortOrder, Worker, WorkerStatus


class MemoryCatalogue:
    """The part of `LightningStore` that knows nothing of rollouts."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tables = Tables()

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """A new snapshot, version 1."""
        return await self.update_resources(new_id("rs"), resources)

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Create it, or replace what it holds and raise its version."""
        with self._lock:
            now = time.time()
            old = self._tables.resources.get(resources_id)
            snapshot = self._tables.resources[resources_id] = ResourcesUpdate(
                resources_id=resources_id,
                create_time=old.create_time if old else now,
                update_time=now,
                version=old.version + 1 if old else 1,
                resources=resources,
            ).model_copy(deep=True)
            self._tables.newest_resources = resources_id
            return snapshot.model_copy(deep=True)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """None where it is unknown."""
        with self._lock:
            snapshot = self._tables.resources.get(resources_id)
            return snapshot and snapshot.model_copy(deep=True)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The snapshot that was added or updated last."""
        with self._lock:
            newest = self._tables.newest_resources
            return await self.get_resources_by_id(newest) if newest is not None else None

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """All snapshots."""
        tests = equals("resources_id", resources_id) + contains("resources_id", resources_id_contains)
        with self._lock:
            found = matching(self._tables.resources.values(), tests, filter_logic)
            return pages.page(found, pages.RESOURCES_SORTS, sort_by, sort_order, limit, offset)

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """All workers."""
        tests = one_of("status", status_in) + contains("worker_id", worker_id_contains)
        with self._lock:
            found = matching(self._tables.workers.values(), tests, filter_logic)
            return pages.page(found, pages.WORKER_SORTS, sort_by, sort_order, limit, offset)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """None where it is unknown."""
        with self._lock:
            worker = self._tables.workers.get(worker_id)
            return worker and worker.model_copy(deep=True)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> Worker:
        """A heartbeat.

        Raises:
            TypeError: no statistics.
        """
        if heartbeat_stats is None:
            raise TypeError("update_worker needs heartbeat_stats: an empty dictionary says that there are none")
        with self._lock:
            worker = self._tables.workers.setdefault(worker_id, Worker(worker_id=worker_id))
            worker.heartbeat_stats, worker.last_heartbeat_time = storable(heartbeat_stats), time.time()
            return worker.model_copy(deep=True)
