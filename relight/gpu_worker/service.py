"""The GPU worker process: an engine and a trainer as subprocesses, and two task queues.

`relight-gpu` hands a host to a run; everything after that goes to the host's own queue, `relight-gpu.<host>`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from temporalio.worker import Worker

from relight.connections import connect_database, connect_temporal
from relight.draining import HandBack, working
from relight.errors import StackError
from relight.gpu_worker.activities import ClaimActivities, HostActivities
from relight.gpu_worker.host import GpuHost, host_name
from relight.settings import Settings

log = logging.getLogger(__name__)

HOST_SLOTS = 4
"""An update, and what may wait beside it; updates of a run take turns by themselves."""


async def serve(settings: Settings) -> None:
    """Serve GPU work until the task is cancelled. An update under way may end; engine and trainer serve until then.

    Raises:
        StackError: another GPU worker of this host runs.
    """
    name = host_name(settings)
    with only_one(settings.home, name):
        async with AsyncExitStack() as stack:
            database = await connect_database(settings, max_size=8)
            stack.push_async_callback(database.close)
            client = await connect_temporal(settings)
            queue = f"{settings.gpu_queue}.{name}"
            host = GpuHost(database, settings, name, queue)
            stack.push_async_callback(host.close)
            await host.start()
            claims, work = ClaimActivities(host), HostActivities(host)
            own = [work.prepare_engines, work.update_policy, work.release_gpu]
            workers = [
                Worker(
                    client,
                    task_queue=task_queue,
                    activities=activities,
                    max_concurrent_activities=slots,
                    graceful_shutdown_timeout=timedelta(seconds=settings.drain_seconds),
                    interceptors=[HandBack()],
                )
                for task_queue, activities, slots in (
                    (settings.gpu_queue, [claims.claim_gpu], 1),
                    (queue, own, HOST_SLOTS),
                )
            ]
            log.info("GPU host %s polls %s", name, queue, extra={"action": "gpu_worker_up"})
            beating = asyncio.create_task(host.beat())
            stack.callback(beating.cancel)
            async with working(workers):
                await asyncio.shield(beating)


@contextmanager
def only_one(home: Path, name: str) -> Generator[None]:
    """Two GPU workers under one name would obey the same leases."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"gpu-worker-{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another GPU worker runs as host {name!r} in {home}; give this one a name by RELIGHT_GPU_HOST"
            ) from None
        yield
