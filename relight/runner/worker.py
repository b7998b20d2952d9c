"""The runner process: serves the agents and graders that it was started with, each on its own task queue."""

from __future__ import annotations

import logging
import os
import platform
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from relight.confinement import sandbox
from relight.confinement.policy import GPU_DEVICES, ConfinementPolicy, policy
from relight.confinement.privileges import set_dumpable
from relight.confinement.protections import describe
from relight.observability.process_reports import Doing, keep_reporting, own_report
from relight.runner.agent_runners import AgentRunners
from relight.runner.attempt_activity import RunnerActivities
from relight.runner.attempt_limits import AttemptLimits
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.grading_activity import GradingActivities
from relight.runner.process_messages import LoadReport
from relight.runner.shared_exclusive_lock import SharedExclusiveLock
from relight.settings import Settings
from relight.store.attempts.attempt_tokens import runner_token
from relight.store.attempts.plain_http_client import StoreLink
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.temporal.connection import connect_temporal
from relight.temporal.draining import keep_working
from relight.types.names import runner_queue

log = logging.getLogger(__name__)

CONCURRENCY = 16
HEARTBEAT_SECONDS = 2.0
"""Well under the workflow's heartbeat timeout of 10 s."""
HEARTBEAT_THROTTLE = timedelta(seconds=3)
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
        isolation: gives every attempt a process of its own, even if the run file says otherwise: `sandbox` in
            namespaces, `process` without. By default there are namespaces where they can be had.
        environment: names of variables of this process that agents get too.
        python: interpreter that runs the agents; by default this one.

    Raises:
        AgentLoadError: a reference can't be imported.
        ConfigError: the wrapper is no command of this machine, or `sandbox` can't be had.
        TemporalError: the server can't be reached.
    """
    worker_id = f"runner-{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    set_dumpable(False)
    async with AsyncExitStack() as stack:
        gateway = GatewayProbe(settings.gateway_url)
        stack.push_async_callback(gateway.close)
        allowed = agents_policy(settings, gateway.relay.ports)
        limits = AttemptLimits(
            settings.attempt_memory_bytes, settings.attempt_processes, settings.attempt_scratch_bytes
        )
        wrapper = sandbox.wrapper_command(settings.wrapper)
        python = python or sys.executable
        lacking = await sandbox.why_unavailable(isolation, python, wrapper)
        options: dict[str, Any] = {"python": python, "policy": allowed, "limits": limits, "wrapper": wrapper}
        options["namespaces"] = not lacking
        agents = AgentRunners(references, passed_environment=environment, **options)
        stack.push_async_callback(agents.close)
        served = report_loaded(await agents.start(), lacking)
        token = settings.token_value and runner_token(settings.token_value)
        store = await stack.enter_async_context(StoreLink(settings.store_url, token))
        client = await connect_temporal(settings)
        queues = [runner_queue(settings.runner_queue, name) for name in served]
        doing = Doing()
        grading, lock = GradingActivities(store, agents), SharedExclusiveLock()
        workers: list[Worker] = []
        for name, queue in zip(served, queues, strict=True):
            own = RunnerActivities(store, agents, gateway, name, worker_id, isolation is not None, lock, lacking)
            activities = [own.run_attempt, grading.grade_attempt, grading.regrade_attempt]
            workers.append(make_worker(client, queue, activities, doing, concurrency, settings.drain_seconds))
            log.info("runner serves %s on %s", name, queue, extra={"action": "runner_up", "agent": name})
        async with keep_working(workers):
            send = partial(store.register_worker, retry_seconds=0)
            report = partial(own_report, "runner", doing, worker_id=worker_id, queues=queues, serves=served)
            await keep_reporting(send, report, doing)


def make_worker(
    client: Client,
    queue: str,
    activities: Sequence[Callable[..., Any]],
    doing: Doing,
    concurrency: int,
    drain_seconds: float,
) -> Worker:
    """The Temporal worker of an agent's queue."""
    return Worker(
        client,
        task_queue=queue,
        activities=activities,
        max_concurrent_activities=concurrency,
        graceful_shutdown_timeout=timedelta(seconds=drain_seconds),
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        interceptors=[ActivityInterceptor(HEARTBEAT_SECONDS, doing)],
    )


def agents_policy(settings: Settings, ports: Sequence[int]) -> ConfinementPolicy:
    """What the agents of a runner with these settings may reach; `ports` are those of its relays."""
    return policy(
        home=settings.home,
        network=settings.network,
        allow_path=settings.allow_path,
        allow_net=settings.allow_net,
        urls=[settings.gateway_url, settings.store_url],
        ports=ports,
        gpu_devices=GPU_DEVICES if settings.allow_gpu else (),
        environ=os.environ,
    )


def report_loaded(reports: Sequence[LoadReport], lacking: str) -> list[str]:
    """Log what the fork servers reported; returns the names of all agents."""
    for warning in (warning for report in reports for warning in report.warnings):
        log.warning(warning, extra={"action": "agent_warning"})
    for sentence in {describe(report.held) for report in reports}:
        log.info(sentence, extra={"action": "protections"})
    log.info(sandbox.describe(lacking), extra={"action": "namespaces"})
    for path in sandbox.open_sockets() if lacking else ():
        text = "agents can connect to %s and have any program started: run the runner as a user who may not write there"
        log.warning(text, path, extra={"action": "open_socket", "path": path})
    return [name for report in reports for name in report.agents]
