"""Which workers poll a task queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from relight.errors import TemporalError

ANSWER_SECONDS = 5


async def pollers_of(
    client: Client, queue: str, *, activities: bool, timeout: timedelta | None = None
) -> Sequence[PollerInfo]:
    """The workers that polled a queue lately for activities, or for workflow tasks.

    Raises:
        RPCError: the server does not answer.
    """
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY if activities else TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    return (await client.workflow_service.describe_task_queue(request, timeout=timeout)).pollers


async def names_of_pollers(client: Client, queue: str, *, activities: bool = False) -> list[str]:
    """Identities of the workers that poll a queue for workflow tasks, or for activities.

    Raises:
        TemporalError: the server does not answer.
    """
    try:
        found = await pollers_of(client, queue, activities=activities, timeout=timedelta(seconds=ANSWER_SECONDS))
    except RPCError as error:
        raise TemporalError(f"can't read the pollers of task queue {queue!r} from Temporal: {error}") from error
    return [poller.identity for poller in found]
