"""The orchestrator process: workflows, and the activities that plan and record."""

from __future__ import annotations

import logging
from asyncio import TaskGroup
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from relight.activities.orchestrator import OrchestratorActivities
from relight.observability.process_reports import Doing, keep_reporting, own_report
from relight.operators.command_loop import keep_doing_commands
from relight.settings import Settings
from relight.store.database import opened_database
from relight.store.queue.outbox import keep_dispatching
from relight.store.workers import register_worker
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.temporal.connection import connect_temporal
from relight.temporal.draining import keep_working
from relight.temporal.server_setup import configure
from relight.worker.reconciler import keep_reconciling
from relight.workflows import WORKFLOWS
from relight.workflows.input import InputConverter

log = logging.getLogger(__name__)

WORKFLOW_SLOTS = 16
"""Workflow tasks at once: they are CPU-bound under one interpreter, so more only makes each slower."""
CACHED_WORKFLOWS = 2000
ACTIVITY_SLOTS = 64
HEARTBEAT_SECONDS = 3.0


def activities_of(holder: object) -> list[Any]:
    """The bound methods of an object that are activities."""
    methods = (getattr(holder, name) for name in dir(holder) if not name.startswith("_"))
    return [method for method in methods if hasattr(method, "__temporal_activity_definition")]


def make_worker(
    client: Client, queue: str, activities: Sequence[Any], doing: Doing | None = None, **options: Any
) -> Worker:
    """The Temporal worker of the orchestrator; its activities are put into `doing`.

    Workflows run outside the SDK's sandbox, which costs a fifth of the throughput; that they are deterministic is shown
    by replaying saved histories and by running the tests without a workflow cache.
    """
    settings: dict[str, Any] = {
        "max_cached_workflows": CACHED_WORKFLOWS,
        "max_concurrent_workflow_tasks": WORKFLOW_SLOTS,
        "max_concurrent_activities": ACTIVITY_SLOTS,
        "interceptors": [ActivityInterceptor(HEARTBEAT_SECONDS, doing or Doing())],
        **options,
    }
    config = client.config()
    config["data_converter"] = DataConverter(payload_converter_class=InputConverter)
    return Worker(
        Client(**config),
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=activities,
        workflow_runner=UnsandboxedWorkflowRunner(),
        **settings,
    )


def versioned(settings: Settings) -> dict[str, Any]:
    """The option that ties a worker to its build; nothing where it has none."""
    if not settings.build_id:
        return {}
    version = WorkerDeploymentVersion(deployment_name=settings.deployment, build_id=settings.build_id)
    hint = f"set-current-version --deployment-name {settings.deployment} --build-id {settings.build_id}"
    log.info(
        "this build gets no work until it is made current: temporal worker deployment %s",
        hint,
        extra={"action": "versioned"},
    )
    return {"deployment_config": WorkerDeploymentConfig(version=version, use_worker_versioning=True)}


async def serve(settings: Settings) -> None:
    """Run the orchestrator until the task is cancelled."""
    async with opened_database(settings, max_size=16) as database:
        client = await connect_temporal(settings)
        await configure(client, set_retention=False)
        activities = OrchestratorActivities(database, client, settings.data_root)
        log.info("orchestrator polls %s", settings.orchestrator_queue, extra={"action": "orchestrator_up"})
        grace = timedelta(seconds=settings.drain_seconds)
        queue = settings.orchestrator_queue
        doing = Doing()
        options = {"graceful_shutdown_timeout": grace, **versioned(settings)}
        worker = make_worker(client, queue, activities_of(activities), doing, **options)
        async with keep_working([worker]), TaskGroup() as group:
            group.create_task(keep_reconciling(database, client, queue))
            group.create_task(keep_doing_commands(database, client, queue))
            group.create_task(keep_dispatching(database, client, queue=queue))
            report = partial(own_report, "orchestrator", doing, queues=[queue])
            group.create_task(keep_reporting(partial(register_worker, database), report, doing))
