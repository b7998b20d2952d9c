"""The overview of `relight status`: processes of the stack, services, task queues and their pollers, hosts, runs."""

from __future__ import annotations

from pydantic import BaseModel, Field

from relight.cli import output
from relight.cli.full_disks import FullDisk, full_disks
from relight.cli.progress import size_text
from relight.cli.render import print_table
from relight.cli.runs import show_runs
from relight.cli.stack_processes import Process, read_processes
from relight.cli.store_reader import StoreReader
from relight.errors import RelightError
from relight.settings import Settings
from relight.stack.stack_file import running_pid
from relight.temporal.connection import connect_temporal
from relight.temporal.pollers import names_of_pollers
from relight.types.names import runner_queue
from relight.types.views import ClusterView, RunSummary, WorkerView

SHOWN_RUNS = 10
STALE_SECONDS = 30.0
"""A worker reports every 10 s; one that has not reported for so long is shown as gone."""


class ServiceStatus(BaseModel):
    """A service and whether it answers."""

    name: str
    url: str
    error: str | None = None
    """Why it does not answer; None if it does."""


class QueueStatus(BaseModel):
    """A task queue and the workers that poll it."""

    queue: str
    serves: str
    pollers: list[str]


class StackOverview(BaseModel):
    """Everything that `relight status` shows."""

    home: str
    stack_pid: int | None = None
    full_disks: list[FullDisk] = Field(default_factory=list[FullDisk])
    processes: list[Process] = Field(default_factory=list[Process])
    services: list[ServiceStatus] = Field(default_factory=list[ServiceStatus])
    web_ui: str | None = None
    """Address of Temporal's Web UI, if it is known."""
    queues: list[QueueStatus] = Field(default_factory=list[QueueStatus])
    cluster: ClusterView | None = None
    runs: list[RunSummary] = Field(default_factory=list[RunSummary])

    @property
    def reachable(self) -> bool:
        """Whether every service answers."""
        return all(service.error is None for service in self.services)


async def read_overview(settings: Settings, reader: StoreReader) -> StackOverview:
    """Query the stack file, the store and Temporal; a service that does not answer has an error."""
    found = StackOverview(home=str(settings.home), stack_pid=running_pid(settings.home))
    found.full_disks = full_disks(settings.home)
    found.web_ui = settings.temporal_ui_url
    if found.stack_pid:
        found.processes = list(read_processes(settings.home).values())
    store = ServiceStatus(name="store", url=settings.store_url)
    temporal = ServiceStatus(name="Temporal", url=settings.temporal_address)
    found.services = [store, temporal]
    try:
        found.cluster = await reader.cluster()
        found.runs = await reader.runs(SHOWN_RUNS)
    except RelightError as error:
        store.error = error.message
    try:
        found.queues = await _queues(settings, found)
    except RelightError as error:
        temporal.error = error.message
    return found


async def _queues(settings: Settings, found: StackOverview) -> list[QueueStatus]:
    client = await connect_temporal(settings, timeout_seconds=5.0)
    wanted = [(settings.orchestrator_queue, "workflows"), (settings.gpu_queue, "GPU hosts")]
    agents = {agent for worker in (found.cluster.workers if found.cluster else []) for agent in worker.serves}
    agents |= {run.agent for run in found.runs if run.status == "running"}
    wanted += [(runner_queue(settings.runner_queue, agent), f"agent {agent}") for agent in sorted(agents)]
    return [
        QueueStatus(
            queue=name, serves=what, pollers=await names_of_pollers(client, name, activities=what != "workflows")
        )
        for name, what in wanted
    ]


def show(found: StackOverview) -> None:
    """Print the overview for people."""
    _show_stack(found)
    for disk in found.full_disks:
        output.say(f"disk      {disk}")
    for service in found.services:
        output.say(f"{service.name:<9} {service.error or f'{service.url} answers'}")
    if found.web_ui:
        output.say(f"web UI    {found.web_ui}")
    if found.queues:
        output.say("")
        rows = [(queue.queue, queue.serves, ", ".join(queue.pollers) or "no worker") for queue in found.queues]
        print_table(("task queue", "serves", "polled by"), rows)
    if found.cluster:
        output.say("")
        _show_cluster(found.cluster)
        output.say("")
        show_runs(found.runs)


def _show_stack(found: StackOverview) -> None:
    if not found.stack_pid:
        output.say(f"stack     no embedded stack is running in {found.home}")
        return
    output.say(f"stack     embedded, in {found.home} (pid {found.stack_pid})")
    rows = [(one.name, one.state, str(one.pid or "-"), str(one.restarts), one.log or "") for one in found.processes]
    print_table(("process", "state", "pid", "restarts", "log"), rows)


def _show_cluster(cluster: ClusterView) -> None:
    rows = [_worker_row(worker) for worker in cluster.workers]
    for host in cluster.gpu_hosts:
        run = f"run {host.run}" if host.run else "no run"
        rows.append(("GPU host", host.host, "-", host.state, ", ".join(filter(None, (run, host.detail))), "", ""))
    for engine in cluster.engines:
        detail = f"run {engine.run}" if engine.version is None else f"version {engine.version} of run {engine.run}"
        rows.append(("engine", engine.host, str(engine.pid or "-"), engine.state, detail, "", ""))
    print_table(("worker", "host", "pid", "status", "serves", "memory", "version"), rows)


def _worker_row(worker: WorkerView) -> tuple[str, ...]:
    work = f"{len(worker.doing)}: {worker.doing[-1]}" if len(worker.doing) > 1 else "".join(worker.doing)
    status = f"{worker.status} ({work})" if work else worker.status
    gpus = [f"{gpu.name}, {size_text(gpu.memory_bytes)}" for gpu in worker.gpus]
    return (
        worker.kind,
        worker.host,
        str(worker.pid or "-"),
        status if worker.seconds_ago < STALE_SECONDS else f"gone for {worker.seconds_ago:.0f} s",
        ", ".join([*(worker.serves or worker.queues), *gpus]),
        "-" if worker.memory_bytes is None else size_text(worker.memory_bytes),
        worker.version or "-",
    )
