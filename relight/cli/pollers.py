"""Who polls a task queue: no poller there is what "nobody serves this" means."""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from relight.errors import TemporalError


async def pollers(client: Client, queue: str, *, activities: bool = False) -> list[str]:
    """Identities of the workers that poll a queue for workflow tasks, or for activities.

    Raises:
        TemporalError: the server does not answer.
    """
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY if activities else TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=5))
    except RPCError as error:
        raise TemporalError(f"the Temporal server does not say who polls {queue!r}: {error}") from error
    return [poller.identity for poller in answer.pollers]
