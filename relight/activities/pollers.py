"""Who polls a task queue: how a run knows that nobody serves its agent, or that no GPU worker is up."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from relight.types.names import runner_queue
from relight.types.payloads import CheckInput

RECENT_SECONDS = 90
"""A poll is a request of up to 60 s, so one that is older came from a process that is gone."""


async def count_pollers(client: Client, queue: str) -> int:
    """Processes that polled a queue for activities lately."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    answer = await client.workflow_service.describe_task_queue(request)
    now = datetime.now(UTC)
    seen = [poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in answer.pollers]
    return sum((now - at).total_seconds() < RECENT_SECONDS for at in seen)


async def why_waiting(client: Client, check: CheckInput) -> str | None:
    """Why a run can't go on, in a sentence that says what to do; None where it can."""
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
