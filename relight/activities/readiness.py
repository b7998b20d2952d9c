"""Whether any worker polls a task queue: how a run finds out that no runner serves its agent, or no GPU worker runs."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.client import Client

from relight.temporal.pollers import pollers_of
from relight.types.names import runner_queue
from relight.types.payloads import CheckInput

RECENT_SECONDS = 90
"""A poll takes up to 60 s, so the process of an older one has ended."""


async def count_pollers(client: Client, queue: str) -> int:
    """The number of processes that polled a queue for activities recently."""
    polled = await pollers_of(client, queue, activities=True)
    now = datetime.now(UTC)
    seen = [poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in polled]
    return sum((now - at).total_seconds() < RECENT_SECONDS for at in seen)


async def why_waiting(client: Client, check: CheckInput) -> str | None:
    """Why a run can't continue, with what to do about it; None if it can."""
    for kind, name in (("agent", check.agent), ("grader", check.grader)):
        queue = runner_queue(check.runner_queue, name or "")
        if name and not await count_pollers(client, queue):
            return (
                f"no runner serves {kind} {name!r} (task queue {queue}); "
                f"start one with `relight runner package.module:{name}`"
            )
    if check.gpu_queue and not await count_pollers(client, check.gpu_queue):
        return f"no GPU worker polls task queue {check.gpu_queue}; start one with `relight gpu-worker`"
    return None
