"""The processes of the platform, by their own reports."""

from __future__ import annotations

from relight.store.database import Database
from relight.store.storable import storable, storable_text
from relight.types.wire import WorkerReport

GONE_SECONDS = 3600.0
"""How long after its last report a process of the platform is shown."""


async def register_worker(database: Database, worker: WorkerReport) -> None:
    """Record the report of a process."""
    rollout, version = worker.current_rollout_id, worker.version
    await database.execute(
        "register_worker",
        *(storable_text(text) for text in (worker.worker_id, worker.kind, worker.host)),
        worker.pid,
        [storable_text(agent) for agent in worker.serves],
        storable(worker.heartbeat_stats),
        worker.status,
        [storable_text(text) for text in worker.doing],
        rollout and storable_text(rollout),
        version and storable_text(version),
        [storable_text(queue) for queue in worker.queues],
        worker.memory_bytes,
        storable([gpu.model_dump() for gpu in worker.gpus]),
    )


async def drop_gone_workers(database: Database) -> None:
    """Remove processes of the platform that have not reported for an hour; one that reports again is added again."""
    await database.execute("drop_gone_workers", GONE_SECONDS)
