"""The GPU worker process: an engine and a trainer as subprocesses, and two task queues.

On `relight-gpu` runs claim a host; everything after that goes to the host's own queue, `relight-gpu.<host>`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from temporalio.worker import Worker

from relight.errors import StackError
from relight.gpu_worker.host import GpuHost, host_name
from relight.observability.process_reports import Doing, find_gpus, keep_reporting, own_report
from relight.retrying import in_background
from relight.settings import Settings
from relight.store.database import opened_database
from relight.store.workers import register_worker
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.temporal.connection import connect_temporal
from relight.temporal.draining import keep_working

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
HOST_CONCURRENCY = 4
"""Activities at once: an update and those that may wait beside it. Updates of a run take turns by a lock."""


async def serve(settings: Settings) -> None:
    """Serve until the task is cancelled. An update under way may end; engine and trainer run until then.

    Raises:
        StackError: another GPU worker with this host name is running.
    """
    name = host_name(settings)
    with require_only_worker(settings.home, name):
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(opened_database(settings, max_size=8))
            client = await connect_temporal(settings)
            queue = f"{settings.gpu_queue}.{name}"
            host = GpuHost(database, settings, name, queue)
            stack.push_async_callback(host.close)
            await host.start()
            doing, gpus = Doing(), await find_gpus()
            workers = [
                Worker(
                    client,
                    task_queue=task_queue,
                    activities=activities,
                    max_concurrent_activities=slots,
                    graceful_shutdown_timeout=timedelta(seconds=settings.drain_seconds),
                    interceptors=[ActivityInterceptor(HEARTBEAT_SECONDS, doing)],
                )
                for task_queue, activities, slots in (
                    (settings.gpu_queue, [host.claim], 1),
                    (queue, [host.prepare, host.update, host.release], HOST_CONCURRENCY),
                )
            ]
            log.info("GPU host %s polls %s", name, queue, extra={"action": "gpu_worker_up"})
            report = partial(own_report, "gpu-worker", doing, queues=[settings.gpu_queue, queue], gpus=gpus)
            reporting = keep_reporting(partial(register_worker, database), report, doing)
            async with in_background(host.keep_reporting_alive(), reporting) as (heartbeat, _), keep_working(workers):
                await asyncio.shield(heartbeat)


@contextmanager
def require_only_worker(home: Path, name: str) -> Generator[None]:
    """Lock the host's name: two GPU workers under one name would use the same leases."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"gpu-worker-{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another GPU worker is running as host {name!r} in {home}; name this one with RELIGHT_GPU_HOST"
            ) from None
        yield
