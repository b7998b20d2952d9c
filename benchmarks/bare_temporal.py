"""The baseline of the orchestration benchmark: parents that start children, each with one activity that does nothing.

python -m benchmarks.bare_temporal ADDRESS workflows|activities
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from relight.temporal import search_attributes as search
from relight.worker.orchestrator import CACHED_WORKFLOWS, WORKFLOW_SLOTS

BARE_QUEUE = "bare"
ACTIVITY_QUEUE = "bare-activities"
ACTIVITY_SLOTS = 16


class BareInput(BaseModel):
    """A parent's name and how many children it has."""

    name: str
    children: int = 0


@activity.defn
async def do_nothing(item: BareInput) -> float:
    return 1.0


@workflow.defn
class BareChild:
    @workflow.run
    async def run(self, item: BareInput) -> float:
        return await workflow.execute_activity(
            do_nothing,
            item,
            task_queue=ACTIVITY_QUEUE,
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=10),
        )


@workflow.defn
class BareBatch:
    @workflow.run
    async def run(self, batch: BareInput) -> float:
        children = (
            workflow.execute_child_workflow(
                BareChild.run,
                BareInput(name=f"{batch.name}-{number}"),
                id=f"bare-child/{batch.name}-{number}",
                search_attributes=search.of_step(batch.name, 1),
            )
            for number in range(batch.children)
        )
        return sum(await asyncio.gather(*children))


async def serve(address: str, role: str) -> None:
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    if role == "workflows":
        worker = Worker(
            client,
            task_queue=BARE_QUEUE,
            workflows=[BareBatch, BareChild],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_cached_workflows=CACHED_WORKFLOWS,
            max_concurrent_workflow_tasks=WORKFLOW_SLOTS,
        )
    else:
        worker = Worker(
            client, task_queue=ACTIVITY_QUEUE, activities=[do_nothing], max_concurrent_activities=ACTIVITY_SLOTS
        )
    await worker.run()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
