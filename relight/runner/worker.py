"""The runner process: serves the agents and graders that it was started with, each on its own task queue."""

from __future__ import annotations

import logging
import os
import platform
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

from temporalio.worker import Worker

from relight.observability.reporting import Doing, keep_reporting, own_report
from relight.runner.attempt_activity import RunnerActivities
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.grading_activity import GradingActivities
from relight.runner.shared_exclusive_lock import SharedExclusiveLock
from relight.runner.shared_isolation import SharedRunner
from relight.settings import Settings
from relight.store.attempts.plain_http_client import StoreLink
from relight.temporal.connection import connect_temporal
from relight.temporal.current_activities import Reported
from relight.temporal.draining import RetryElsewhere, keep_working
from relight.types.names import runner_queue

log = logging.getLogger(__name__)

CONCURRENCY = 16
HEARD_WITHIN = timedelta(seconds=3)
"""How soon an attempt learns that it was cancelled, which is in the answer to a heartbeat."""


async def serve(
    settings: Settings,
    references: Sequence[str],
    *,
    concurrency: int = CONCURRENCY,
    isolation: str | None = None,
    environment: Sequence[str] = (),
    python: str | None = None,
) -> None:
    """Run attempts until the task is cancelled; then attempts under way may end, and the rest is handed back
    (`draining.py`).

    Args:
        references: agents and graders as `package.module:name` or `file.py:name`.
        concurrency: attempts of each agent at a time.
        isolation: `process` gives every attempt a process of its own, even if the run file says otherwise.
        environment: names of variables of this process that agents get too.
        python: interpreter that runs the agents; by default this one.

    Raises:
        AgentLoadError: a reference can't be imported.
        TemporalError: the server can't be reached.
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
        queues = [runner_queue(settings.runner_queue, name) for name in served]
        doing = Doing()
        grading, solitude = GradingActivities(store, agents), SharedExclusiveLock()
        workers: list[Worker] = []
        for name, queue in zip(served, queues, strict=True):
            activities = RunnerActivities(store, agents, gateway, name, worker_id, isolation == "process", solitude)
            worker = Worker(
                client,
                task_queue=queue,
                activities=[activities.run_attempt, grading.grade_attempt, grading.judge_attempt],
                max_concurrent_activities=concurrency,
                graceful_shutdown_timeout=timedelta(seconds=settings.drain_seconds),
                max_heartbeat_throttle_interval=HEARD_WITHIN,
                interceptors=[RetryElsewhere(), Reported(doing)],
            )
            workers.append(worker)
            log.info("runner serves %s on %s", name, queue, extra={"action": "runner_up", "agent": name})
        async with keep_working(workers):
            tell = partial(store.register_worker, retry_seconds=0)
            report = partial(own_report, "runner", doing, worker_id=worker_id, queues=queues, serves=served)
            await keep_reporting(tell, report, doing)
