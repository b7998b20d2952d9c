"""The runner process: serves the agents and graders that it was started with, each on its own task queue."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from temporalio.worker import Worker

from relight.connections import connect_temporal
from relight.draining import HandBack, working
from relight.errors import RelightError
from relight.runner.activity import RunnerActivities
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.grading import GradingActivities
from relight.runner.shared import SharedRunner
from relight.runner.solitude import Solitude
from relight.settings import Settings
from relight.store.client import StoreClient
from relight.store.envelopes import WorkerReport
from relight.store.link import StoreLink
from relight.types.names import runner_queue

log = logging.getLogger(__name__)

CONCURRENCY = 16
REPORT_SECONDS = 10.0


async def serve(
    settings: Settings,
    references: Sequence[str],
    *,
    concurrency: int = CONCURRENCY,
    isolation: str | None = None,
    environment: Sequence[str] = (),
    python: str | None = None,
) -> None:
    """Run attempts until the task is cancelled; those under way may end, the rest is handed back (`draining.py`).

    Args:
        references: agents and graders as `package.module:name` or `file.py:name`.
        concurrency: attempts of each agent at a time.
        isolation: `process` gives every attempt a process of its own, whatever the run file says.
        environment: names of variables of this process that agents see too.
        python: interpreter that runs the agents; this one where it is not given.

    Raises:
        AgentLoadError: a reference can't be imported.
        TemporalError: the server is out of reach.
    """
    worker_id = f"runner-{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    async with AsyncExitStack() as stack:
        agents = SharedRunner(references, passed_environment=environment, python=python)
        stack.push_async_callback(agents.close)
        loaded = await agents.start()
        for warning in loaded.warnings:
            log.warning(warning, extra={"action": "agent_warning"})
        store = await stack.enter_async_context(StoreLink.from_settings(settings))
        gateway = GatewayProbe(settings.gateway_url)
        stack.push_async_callback(gateway.close)
        client = await connect_temporal(settings)
        served = [agent.name for agent in loaded.agents]
        grading, solitude = GradingActivities(store, agents), Solitude()
        workers: list[Worker] = []
        for name in served:
            activities = RunnerActivities(store, agents, gateway, name, worker_id, isolation == "process", solitude)
            queue = runner_queue(settings.runner_queue, name)
            worker = Worker(
                client,
                task_queue=queue,
                activities=[activities.run_attempt, grading.grade_attempt, grading.judge_attempt],
                max_concurrent_activities=concurrency,
                graceful_shutdown_timeout=timedelta(seconds=settings.drain_seconds),
                interceptors=[HandBack()],
            )
            workers.append(worker)
            log.info("runner serves %s on %s", name, queue, extra={"action": "runner_up", "agent": name})
        async with working(workers):
            await _report(store, worker_id, served)


async def _report(store: StoreClient, worker_id: str, served: list[str]) -> None:
    """Say every 10 s that this process is there, until cancelled."""
    report = WorkerReport(worker_id=worker_id, kind="runner", host=platform.node(), pid=os.getpid(), serves=served)
    while True:
        try:
            await store.register_worker(report, patience_seconds=0)
        except RelightError as error:
            log.warning("%s", error, extra={"action": "report_failed"})
        await asyncio.sleep(REPORT_SECONDS)
